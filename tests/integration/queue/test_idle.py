"""The mark of a run that does not use its devices: what the store keeps of it, who is notified, and what it changes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from factories import BOB, claim, must_claim, serve, start, submit, submit_and_claim

from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.retries import Retries, RetryOn
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.model.run_mark import MarkKind
from gpuqueue.queue.census import census
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim
from gpuqueue.text.units import GIB

HOUR_S = 3600.0


def running(queue: JobQueue, **spec: object) -> Claim:
    """Return the run of a new job."""
    serve(queue)
    run = submit_and_claim(queue, **spec)
    start(queue, run)
    return run


def mark(queue: JobQueue, run: Claim, stage: int = 1, *, unused_s: float = HOUR_S, low: bool = False) -> bool:
    """Report the stage of an idle run."""
    return queue.runs.mark(
        run.job_id, run.token, MarkKind.IDLE, stage=stage, for_s=unused_s, low=low, detail=f"stage {stage}"
    )


def reported(queue: JobQueue) -> list[tuple[str, str]]:
    """Return stage and text of each event about an idle run."""
    found: list[Event] = [event for event in queue.outbox.events("0-0") if event.act is Act.RUN_MARK]
    return [(event.fields["stage"], event.fields["detail"]) for event in found]


def idle_s(queue: JobQueue, run: Claim) -> float | None:
    """Return for how long the queue says that the run is idle."""
    job = queue.jobs.get(run.job_id)
    assert job is not None
    if job.idle_since is None:
        return None
    return (queue.jobs.page().at - job.idle_since) / timedelta(seconds=1)


def test_a_marked_run_is_idle_until_it_is_in_use(queue: JobQueue) -> None:
    """The queue knows since when the run is idle, also in its list and its counts. Each stage is reported once."""
    run = running(queue)
    assert idle_s(queue, run) is None

    assert mark(queue, run)
    assert idle_s(queue, run) == pytest.approx(HOUR_S, abs=5.0)
    assert not mark(queue, run, unused_s=2 * HOUR_S), "another worker says the same again"
    assert mark(queue, run, 2)
    assert not mark(queue, run, 1)
    assert idle_s(queue, run) == pytest.approx(HOUR_S, abs=5.0)
    assert [run.job_id] == [job.id for job in queue.jobs.live() if job.idle_since is not None]
    assert 1 == census(queue).idle

    assert mark(queue, run, 0)
    assert not mark(queue, run, 0)

    assert idle_s(queue, run) is None
    assert 0 == census(queue).idle
    assert [("1", "stage 1"), ("2", "stage 2"), ("0", "stage 0")] == reported(queue)
    assert JobState.RUNNING is queue.jobs.live()[0].state


def test_a_job_that_runs_again_is_not_idle_and_a_stale_run_marks_nothing(queue: JobQueue) -> None:
    run = running(queue)
    mark(queue, run)
    queue.runs.lose(run.job_id, run.token, loss_limit=3, detail="gone")
    assert idle_s(queue, run) is None

    again = must_claim(queue)

    assert run.job_id == again.job_id
    assert idle_s(queue, again) is None
    assert not mark(queue, run)


def test_an_idle_run_of_low_priority_makes_way(queue: JobQueue) -> None:
    """A run that counts as low can be preempted by jobs that may preempt low ones, and not once it is in use again."""
    may = {Priority.HIGH: (Priority.LOW,)}
    run = running(queue, mem_bytes=20 * GIB)
    high = submit(queue, mem_bytes=20 * GIB, priority=Priority.HIGH, account=BOB)
    assert claim(queue) is None

    def preempted() -> dict[int, int]:
        return queue.maintenance.preempt(may, after_s=0.0, grace_s=60.0)

    mark(queue, run, 2)
    assert {} == preempted()
    mark(queue, run, 3, low=True)
    found = queue.jobs.why(high)
    assert [Priority.LOW] == [each.priority for verdict in found.devices for each in verdict.runs]
    mark(queue, run, 0)
    assert {} == preempted()
    mark(queue, run, 3, low=True)

    assert {run.job_id: high} == preempted()


@pytest.mark.parametrize("kind", [EndingKind.IDLE, EndingKind.WRONG_DEVICE, EndingKind.NAN])
def test_no_retry_follows_a_run_that_would_end_so_again(queue: JobQueue, kind: EndingKind) -> None:
    """A run that was idle, used a device that it was not given, or has a NaN, has failed, whatever is retried."""
    run = running(queue, retries=Retries(times=3, on=(RetryOn.ANY,)))
    ending = Ending.stopped(kind, -15, "no use")

    after = queue.runs.finish(run.job_id, run.token, state=JobState.FAILED, ending=ending, duration_s=9.0, devices=())

    assert JobState.FAILED is after
