"""The marks of a run in the store: those that go on, those that are over, and what follows their endings."""

from __future__ import annotations

import json

import pytest
import redis
from factories import must_claim, serve, start, submit_and_claim

from gpuqueue.codec.marks import decode_store_marks
from gpuqueue.model.event import Act
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.retries import Retries
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.model.run_mark import MarkKind
from gpuqueue.queue import job_fields, keys
from gpuqueue.queue.census import census
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim


def running(queue: JobQueue, **spec: object) -> Claim:
    """Return the run of a new job."""
    serve(queue)
    run = submit_and_claim(queue, **spec)
    start(queue, run)
    return run


def mark(queue: JobQueue, run: Claim, kind: MarkKind, stage: int = 1, what: str = "") -> bool:
    """Report a mark, or that it is over."""
    return queue.runs.mark(run.job_id, run.token, kind, stage=stage, for_s=60.0, what=what, detail=f"{kind} {stage}")


def job_of(queue: JobQueue, run: Claim) -> Job:
    """Return the job of a run."""
    job = queue.jobs.get(run.job_id)
    assert job is not None
    return job


def test_each_kind_is_marked_and_ends_for_itself(queue: JobQueue) -> None:
    """The job has the marks that go on. The last event has all, for the history. Only idle runs count as idle."""
    run = running(queue)
    assert mark(queue, run, MarkKind.STALLED)
    assert mark(queue, run, MarkKind.NAN, what='loss "is" NaN')
    assert not mark(queue, run, MarkKind.NAN, what="another one")
    assert [("nan", 'loss "is" NaN'), ("stalled", "it writes no output and does not use its devices")] == [
        (each.kind, each.words) for each in job_of(queue, run).marks
    ]
    assert (None, 0) == (job_of(queue, run).idle_since, census(queue).idle)

    assert not mark(queue, run, MarkKind.DISK, 0)
    assert mark(queue, run, MarkKind.NAN, 0)
    assert not mark(queue, run, MarkKind.NAN, 0)
    assert ["stalled"] == [each.kind for each in job_of(queue, run).marks]
    events = [event.fields for event in queue.outbox.events("0-0") if event.act is Act.RUN_MARK]
    assert [("stalled", "1"), ("nan", "1"), ("nan", "0")] == [(each["kind"], each["stage"]) for each in events]
    assert [("nan", True), ("stalled", False)] == [
        (each.kind, each.until is not None) for each in decode_store_marks(events[-1]["marks"])
    ]

    assert mark(queue, run, MarkKind.NAN), "it may come again"
    assert ["nan", "stalled"] == [each.kind for each in job_of(queue, run).marks]
    queue.runs.lose(run.job_id, run.token, loss_limit=3, detail="gone")
    assert () == job_of(queue, must_claim(queue)).marks


@pytest.mark.parametrize("damaged", ["", "[", "7", '{"nan":3}', '{"nan":{}}', "null"])
def test_damaged_marks_do_not_keep_a_run_from_being_marked(queue: JobQueue, store: redis.Redis, damaged: str) -> None:
    run = running(queue)
    store.hset(keys.job(run.job_id), job_fields.MARKS, damaged)
    assert () == job_of(queue, run).marks

    assert mark(queue, run, MarkKind.NAN, what="loss is NaN")

    assert ["loss is NaN"] == [each.words for each in job_of(queue, run).marks]
    assert "nan" in json.loads(store.hget(keys.job(run.job_id), job_fields.MARKS) or "")


def test_a_stalled_run_counts_as_a_failure_for_retries(queue: JobQueue) -> None:
    """With the usual endings to retry after, it is retried."""
    run = running(queue, retries=Retries(times=1))
    ending = Ending.stopped(EndingKind.STALLED, -15, "no output")

    after = queue.runs.finish(run.job_id, run.token, state=JobState.FAILED, ending=ending, duration_s=9.0, devices=())

    assert JobState.QUEUED is after
