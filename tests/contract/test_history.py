"""What the history database guarantees, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest
from factories import make_spec
from outbox import PEAK, Outbox, facts, ids, known, second

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.event import Act, Cursor
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.text.units import GIB


def test_an_empty_history_answers_every_query(database: HistoryDatabase) -> None:
    assert (None, None, None, (), []) == (
        database.cursor(),
        database.max_job_id(),
        database.get(1),
        database.events(1),
        database.history(HistoryQuery()),
    )


def test_a_submitted_job_has_its_full_request_and_waits(database: HistoryDatabase, outbox: Outbox) -> None:
    spec = make_spec(argv=("python", "a b.py"), time_limit_s=60.5, gpus=2, script="a b.py", interpreter="python")
    outbox.submit(1, spec)
    outbox.record()
    job = known(database, 1).job
    actual = (job.spec, job.state, job.submitted_at, job.attempt, job.ended_at)
    assert (replace(spec, env={}), JobState.QUEUED, second(1), 0, None) == actual
    assert (Cursor(epoch="e1", last_id="1700-1"), 1) == (database.cursor(), database.max_job_id())


def test_the_retries_of_a_job_are_found_in_the_order_of_their_ids(database: HistoryDatabase, outbox: Outbox) -> None:
    for job_id, first in enumerate((None, None, 1, 2, 1, 11), 1):
        outbox.submit(job_id, make_spec(retry_of=first))
    outbox.record()
    user = make_spec().account.name
    assert ([3, 5], [4], []) == tuple(database.retries_of(job_id, user) for job_id in (1, 2, 3))
    assert [] == database.retries_of(1, "nobody")


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_a_record_is_the_same_for_any_division_of_its_events_into_batches(
    database: HistoryDatabase, outbox: Outbox, batch: int
) -> None:
    outbox.submit(1, make_spec(gpus=2))
    outbox.claim(1, devices="GPU-b,GPU-a")
    outbox.started(1, devices="GPU-b,GPU-a")
    outbox.finish(1, Ending.from_status(0), JobState.SUCCEEDED, devices="GPU-b,GPU-a")
    outbox.record(batch)
    record = known(database, 1)
    job, run = record.job, record.runs[0]
    assert (JobState.SUCCEEDED, "nodeA", ("GPU-b", "GPU-a")) == (job.state, job.host, job.devices)
    assert (second(2), second(3), second(4)) == (job.claimed_at, job.started_at, job.ended_at)
    assert (second(2), second(3), second(4)) == (run.claimed_at, run.started_at, run.ended_at)
    actual = (run.token, run.worker, run.duration_s, run.ending, run.log_path)
    assert ("1.a", "w0", 1.5, Ending.from_status(0), "/log") == actual
    assert facts("GPU-b,GPU-a", PEAK) == run.devices
    assert 6 * GIB == run.peak_bytes


@pytest.mark.parametrize("batch", [1, 100])
def test_a_released_claim_counts_as_no_attempt(database: HistoryDatabase, outbox: Outbox, batch: int) -> None:
    """A released claim leaves no run: the job waits as before, and the next claim has the same attempt number."""
    outbox.submit(1)
    outbox.claim(1, devices="GPU-0,GPU-1")
    outbox.report(1, Act.RELEASE_CLAIM, JobState.QUEUED, attempt=0, token="1.a", detail="busy")
    outbox.record(batch)
    job = known(database, 1).job
    actual = (known(database, 1).runs, job.state, job.attempt, job.claimed_at, job.host)
    assert ((), JobState.QUEUED, 0, None, None) == actual
    outbox.claim(1, token="1.b", devices="GPU-1")
    outbox.record(batch)
    run = known(database, 1).runs[0]
    assert ("1.b", ["GPU-1"]) == (run.token, [device.uuid for device in run.devices])


def test_a_released_claim_and_the_next_claim_in_one_batch(database: HistoryDatabase, outbox: Outbox) -> None:
    """A released run is replaced by the next run with the same attempt number, even in one batch."""
    outbox.submit(1)
    outbox.claim(1)
    outbox.record()
    outbox.report(1, Act.RELEASE_CLAIM, JobState.QUEUED, attempt=0, token="1.a", detail="busy")
    outbox.claim(1, token="1.b")
    outbox.started(1, token="1.b")
    outbox.record()
    record = known(database, 1)
    assert (["1.b"], JobState.RUNNING) == ([run.token for run in record.runs], record.job.state)
    assert second(5) == record.runs[0].started_at


@pytest.mark.parametrize("batch", [1, 100])
def test_lose_and_run_again(database: HistoryDatabase, outbox: Outbox, batch: int) -> None:
    """Each attempt has its own run: the first one is lost, the second one ends normally."""
    outbox.submit(1)
    outbox.claim(1)
    outbox.started(1)
    outbox.report(1, Act.LOSE, JobState.QUEUED, losses=1, token="1.a", detail="no heartbeat")
    outbox.record(batch)
    job = known(database, 1).job
    assert (JobState.QUEUED, 1, None, None) == (job.state, job.losses, job.claimed_at, job.started_at)
    outbox.claim(1, token="2.b", attempt=2, losses=1)
    outbox.started(1, token="2.b", attempt=2, losses=1)
    outbox.finish(1, Ending.from_status(-9), JobState.FAILED, token="2.b", attempt=2, losses=1)
    outbox.record(batch)
    record = known(database, 1)
    assert [Ending.lost("no heartbeat"), Ending.from_status(-9)] == [run.ending for run in record.runs]
    assert (JobState.FAILED, 2, 1) == (record.job.state, record.job.attempt, record.job.losses)


def test_the_wait_reason_is_set_and_cleared_together_with_the_state(database: HistoryDatabase, outbox: Outbox) -> None:
    outbox.submit(1)
    outbox.claim(1)
    outbox.report(1, Act.LOSE, JobState.HELD, losses=3, reason=WaitReason.LOST_TOO_OFTEN, token="1.a", detail="gone")
    outbox.record()
    job = known(database, 1).job
    assert (JobState.HELD, WaitReason.LOST_TOO_OFTEN, 3) == (job.state, job.reason, job.losses)
    outbox.report(1, Act.RELEASE, JobState.QUEUED)
    outbox.record()
    job = known(database, 1).job
    assert (JobState.QUEUED, None, 0) == (job.state, job.reason, job.losses)


def test_a_job_that_never_ran_can_be_held_and_cancelled(database: HistoryDatabase, outbox: Outbox) -> None:
    outbox.submit(1)
    outbox.report(1, Act.HOLD, JobState.HELD, attempt=0, reason=WaitReason.HELD)
    outbox.report(1, Act.CANCEL, JobState.CANCELLED, attempt=0)
    outbox.record(1)
    record = known(database, 1)
    actual = (record.job.state, record.job.ended_at, record.job.reason, record.runs)
    assert (JobState.CANCELLED, second(3), None, ()) == actual


def test_cancel_of_a_running_job(database: HistoryDatabase, outbox: Outbox) -> None:
    outbox.submit(1)
    outbox.claim(1)
    outbox.started(1)
    outbox.report(1, Act.CANCEL, JobState.CANCELLING)
    outbox.record(1)
    assert (JobState.CANCELLING, None) == (known(database, 1).job.state, known(database, 1).job.ended_at)
    ending = Ending.stopped(EndingKind.CANCELLED, -15)
    outbox.finish(1, ending, JobState.CANCELLED)
    outbox.record(1)
    assert (JobState.CANCELLED, ending) == (known(database, 1).job.state, known(database, 1).runs[0].ending)


def test_a_write_with_a_stale_token_changes_no_run(database: HistoryDatabase, outbox: Outbox) -> None:
    outbox.submit(1)
    outbox.claim(1)
    outbox.record()
    outbox.started(1, token="1.stale")
    outbox.record()
    assert (None, None) == (known(database, 1).runs[0].started_at, known(database, 1).runs[0].log_path)


def test_two_recorders_one_wins(database: HistoryDatabase, outbox: Outbox) -> None:
    """A batch changes nothing and is reported as refused if another recorder moved the cursor."""
    outbox.submit(1)
    mine = list(outbox.reported)
    outbox.record()
    assert not database.apply(mine, expected=None, epoch="e1")
    outbox.submit(2)
    outbox.record()
    late = Cursor(epoch="e1", last_id="1700-1")
    outbox.submit(3)
    assert not database.apply(outbox.reported, expected=late, epoch="e1")
    assert (None, (), Cursor(epoch="e1", last_id="1700-2")) == (database.get(3), database.events(3), database.cursor())


def test_recorders_at_the_same_time(history_url: str, outbox: Outbox) -> None:
    """Of eight recorders that start from the same cursor at the same moment, exactly one writes."""
    outbox.submit(1)
    events = list(outbox.reported)
    databases = [HistoryDatabase(history_url) for _ in range(8)]
    gate, won = threading.Barrier(len(databases)), []

    def race(mine: HistoryDatabase) -> None:
        gate.wait()
        won.append(mine.apply(events, expected=None, epoch="e1"))

    threads = [threading.Thread(target=race, args=(mine,)) for mine in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [False] * 7 + [True] == sorted(won)
    assert 1 == len(databases[0].events(1))
    for mine in databases:
        mine.close()


def test_replay_changes_nothing(database: HistoryDatabase, outbox: Outbox) -> None:
    """A batch that is sent again because its answer got lost is refused as a whole."""
    outbox.submit(1)
    outbox.claim(1)
    events = list(outbox.reported)
    outbox.record()
    outbox.started(1)
    outbox.record()
    before = (database.get(1), database.events(1), database.cursor())
    assert not database.apply(events, expected=None, epoch="e1")
    assert before == (database.get(1), database.events(1), database.cursor())


def test_a_new_epoch_starts_over(database: HistoryDatabase, outbox: Outbox) -> None:
    """Events of a new store are recorded although their ids are lower, and the old events stay."""
    outbox.submit(1)
    outbox.record()
    outbox.number = 0
    outbox.submit(1001)
    assert database.apply(outbox.reported, expected=outbox.cursor, epoch="e2")
    assert (Cursor(epoch="e2", last_id="1700-1"), [1001, 1]) == (database.cursor(), ids(database))


def test_an_empty_batch_succeeds_and_writes_nothing(database: HistoryDatabase) -> None:
    assert database.apply([], expected=None, epoch="e1")
    assert database.cursor() is None


def test_an_unknown_job_breaks_nothing(database: HistoryDatabase, outbox: Outbox) -> None:
    """Events of an unknown job are stored on their own, and the other events of the batch are applied."""
    outbox.claim(7)
    outbox.started(7)
    outbox.finish(7, Ending.from_status(0), JobState.SUCCEEDED)
    outbox.submit(8)
    outbox.claim(8)
    outbox.record()
    assert (None, JobState.STARTING) == (database.get(7), known(database, 8).job.state)
    assert [Act.CLAIM, Act.STARTED, Act.FINISH] == [event.act for event in database.events(7)]


def test_an_unreadable_submission_still_uses_its_id(database: HistoryDatabase, outbox: Outbox) -> None:
    """An unreadable submission still counts for the highest job id, even if nothing else of the job is known."""
    outbox.report(9, Act.SUBMIT, JobState.QUEUED, attempt=0, spec="{")
    outbox.record()
    assert (None, 9) == (database.get(9), database.max_job_id())


def test_what_a_database_refuses_is_replaced(database: HistoryDatabase, outbox: Outbox) -> None:
    """Names that are not UTF-8 and NUL characters are replaced by a mark in the columns."""
    # The spec keeps them unchanged.
    odd = os.fsdecode(b"/home/\xff\xfe")
    spec = make_spec(argv=("cat", odd), cwd=odd, name=odd, script=odd, env={"X": odd})
    outbox.submit(1, spec)
    outbox.claim(1)
    outbox.report(1, Act.LOSE, JobState.LOST, token="1.a", detail=f"{odd}\0")
    outbox.record()
    record = known(database, 1)
    mark = "\N{REPLACEMENT CHARACTER}"
    assert (replace(spec, env={}), Ending.lost(f"/home/{mark * 3}")) == (record.job.spec, record.runs[0].ending)
    kept = database.kept_environment(1)
    assert kept is not None
    assert {"X": odd} == kept.variables
    assert f"{odd}\0" == database.events(1)[-1].fields["detail"]
    assert [1] == ids(database, name=odd)
