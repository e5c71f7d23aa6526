"""A history that lost its data gets back what the store still has."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from factories import make_offer, make_spec, must_claim, serve
from template_history import empty_tables

from gpuqueue.errors import HistoryUnreachable
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.refill import GONE
from gpuqueue.model.dependencies import Dependency, Waits
from gpuqueue.model.event import Act, Cursor
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.job import JobState
from gpuqueue.model.retries import Retries
from gpuqueue.model.run import Ending, EndingKind, Record, RunDevice, Survivor
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim
from gpuqueue.recovery import ID_GAP, catch_up, open_queue
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB
from workers.services.recorder import Recorder

DEVICE = RunDevice(uuid="GPU-0", lease_bytes=GIB, index=0, name="A10", total_bytes=24 * GIB)


@pytest.fixture
def record(queue: JobQueue, database: HistoryDatabase) -> Callable[[], None]:
    """Return a function that does all of the recorder's work."""
    recorder = Recorder(Settings.load(), queue, database)

    def all_of_it() -> None:
        recorder.mend()
        while recorder.record(0):
            pass

    return all_of_it


def start(queue: JobQueue) -> Claim:
    """Claim and start the next job."""
    claimed = must_claim(queue)
    queue.runs.started(claimed.job_id, claimed.token, lease_s=300, log_path="/runs/log", devices=(DEVICE,))
    return claimed


def finish(queue: JobQueue, claimed: Claim, code: int = 0) -> None:
    """Finish a run as its worker would."""
    state = JobState.FAILED if code else JobState.SUCCEEDED
    ending = Ending.from_status(code)
    assert queue.runs.finish(
        claimed.job_id, claimed.token, state=state, ending=ending, duration_s=1.0, devices=(DEVICE,)
    )


def known(database: HistoryDatabase, job_id: int) -> Record:
    """Return the record of a job that must be in the history."""
    record = database.get(job_id)
    assert record is not None
    return record


def test_what_lives_is_written_down_again(
    queue: JobQueue, database: HistoryDatabase, history_url: str, record: Callable[[], None]
) -> None:
    """Live jobs are recorded again, in each state, with their runs.

    Earlier ended jobs are lost, and later events are recorded as usual.
    """
    serve(queue)
    ended, running, starting, lost, held, queued = (queue.requests.submit(make_spec(name=name)).id for name in "ersHhq")
    finish(queue, start(queue))
    run = start(queue)
    token = must_claim(queue).token
    queue.runs.lose(lost, must_claim(queue).token, loss_limit=1, detail="gone")
    queue.jobs.hold(held)
    record()
    before = {job_id: known(database, job_id) for job_id in (running, starting, held, queued)}
    assert known(database, ended)

    empty_tables(history_url)
    record()

    assert database.get(ended) is None
    assert before == {job_id: known(database, job_id) for job_id in before}
    assert [token] == [each.token for each in known(database, starting).runs]
    again = known(database, lost)
    assert (JobState.HELD, 1, 1, ()) == (again.job.state, again.job.attempt, again.job.losses, again.runs)
    assert [Act.RESTORE] == [event.act for event in database.events(running)]
    finish(queue, run, 3)
    record()
    assert (JobState.FAILED, "exit 3") == (
        known(database, running).job.state,
        str(known(database, running).runs[0].ending),
    )
    assert [Act.RESTORE, Act.FINISH] == [event.act for event in database.events(running)]
    assert queue.jobs.get(running) is None, "the queue forgets what the history has"
    assert queued + 1 == queue.requests.submit(make_spec()).id


def test_ends_during_an_outage_of_the_history_are_recorded(
    queue: JobQueue, database: HistoryDatabase, history_url: str, record: Callable[[], None]
) -> None:
    """A job that ends while the history is lost is recorded completely.

    Its end is in the outbox and its claim is not. The exit code must not get lost.
    """
    serve(queue)
    queue.requests.submit(make_spec())
    old = start(queue)
    record()
    finish(queue, old, 7)
    queue.requests.submit(make_spec(name="new"))
    finish(queue, start(queue), 8)
    waiting = queue.requests.submit(make_spec()).id

    empty_tables(history_url)
    record()

    assert ["exit 7", "exit 8"] == [str(known(database, each).runs[-1].ending) for each in (1, 2)]
    assert ["/runs/log"] * 2 == [known(database, each).runs[-1].log_path for each in (1, 2)]
    assert JobState.QUEUED is known(database, waiting).job.state
    assert [waiting] == [job.id for job in queue.jobs.live()]


def test_a_history_without_loss_is_not_changed(
    queue: JobQueue, database: HistoryDatabase, record: Callable[[], None]
) -> None:
    """A complete history is left unchanged: a new one, one in use, and one whose recorder died before it settled."""
    queue.requests.submit(make_spec())
    assert catch_up(queue, database) is None
    record()
    assert catch_up(queue, database) is None
    queue.jobs.cancel(1)
    events, epoch = queue.outbox.events("0-0"), queue.epoch()
    assert database.apply(events, expected=database.cursor(), epoch=epoch or "")

    assert catch_up(queue, database) is None
    assert [Act.SUBMIT, Act.CANCEL] == [event.act for event in database.events(1)]


def test_a_history_lost_right_after_the_store_is_filled_too(
    queue: JobQueue, database: HistoryDatabase, history_url: str, store_url: str, record: Callable[[], None]
) -> None:
    """A history lost right after the store is recorded again.

    No event names the jobs that the store got from the history: nothing was recorded in this epoch yet.
    """
    queue.requests.submit(make_spec())
    record()
    client = connect(store_url)
    client.flushall()
    client.close()
    assert open_queue(queue, database, lease_s=300)

    empty_tables(history_url)
    record()

    assert JobState.QUEUED is known(database, 1).job.state


def test_ids_continue_after_loss_of_the_history_and_then_the_store(
    queue: JobQueue, database: HistoryDatabase, history_url: str, store_url: str, record: Callable[[], None]
) -> None:
    """Ids continue when the history is lost and then the store, although the store had no job left to record again."""
    for _ in range(3):
        queue.jobs.cancel(queue.requests.submit(make_spec()).id)
    record()
    empty_tables(history_url)
    record()
    client = connect(store_url)
    client.flushall()
    client.close()

    assert open_queue(queue, database, lease_s=300)
    assert 3 + ID_GAP + 1 == queue.requests.submit(make_spec()).id
    assert database.get(3) is None


@pytest.mark.parametrize("backend", ["sqlite"])  # a copy of an SQLite database is a file
def test_an_older_copy_of_the_history_is_brought_up_to_date(
    queue: JobQueue, database: HistoryDatabase, store_url: str, record: Callable[[], None], tmp_path: Path
) -> None:
    """An older copy of the history is brought up to date.

    Jobs that are live in the copy and missing in the store have ended. Otherwise they would run again after a loss of
    the store.
    """
    path = tmp_path / "history.db"
    serve(queue, make_offer(slots=9))
    ended, runs_on, again, waits = (queue.requests.submit(make_spec()).id for _ in range(4))
    claims = [start(queue) for _ in range(3)]
    record()
    database.close()
    shutil.copy(path, tmp_path / "copy.db")
    finish(queue, claims[0])
    queue.runs.lose(again, claims[2].token, loss_limit=3, detail="gone")
    second = start(queue)
    new = queue.requests.submit(make_spec()).id
    record()
    database.close()
    for old in tmp_path.glob("history.db*"):
        old.unlink()
    (tmp_path / "copy.db").rename(path)

    record()

    gone = known(database, ended)
    assert (JobState.LOST, GONE) == (gone.job.state, gone.runs[0].ending.detail if gone.runs[0].ending else "")
    assert [Act.SUBMIT, Act.CLAIM, Act.STARTED, Act.RESTORE] == [event.act for event in database.events(ended)]
    assert [ended] == [each.job.id for each in database.history(HistoryQuery(endings=(EndingKind.LOST,)))]
    assert [JobState.RUNNING, JobState.QUEUED] == [known(database, each).job.state for each in (runs_on, new)]
    first_run, second_run = known(database, again).runs
    assert (EndingKind.LOST, None) == (first_run.ending.kind if first_run.ending else None, second_run.ending)
    assert second.token == second_run.token
    finish(queue, claims[1])
    record()
    assert "exit 0" == str(known(database, runs_on).runs[0].ending)
    client = connect(store_url)
    client.flushall()
    client.close()
    assert open_queue(queue, database, lease_s=300)
    assert [again, waits, new] == [job.id for job in queue.jobs.live()]


@pytest.mark.parametrize("backend", ["sqlite"])
def test_what_was_written_into_a_file_just_deleted_was_not_written(database: HistoryDatabase, tmp_path: Path) -> None:
    """A write into a file that was just deleted counts as failed.

    The commit succeeds, into a file without a name, and the queue must not drop anything because of it.
    """
    to = Cursor(epoch="e", last_id="1-0")

    def meanwhile() -> Iterator[list[Survivor]]:
        (tmp_path / "history.db").unlink()
        yield []

    with pytest.raises(HistoryUnreachable, match="was replaced while it was written to"):
        database.rebase(meanwhile(), expected=None, to=to, last_given=0, at=datetime.now(timezone.utc))
    with pytest.raises(HistoryUnreachable, match="is not there yet"):
        database.cursor()


def test_the_history_of_another_store_is_not_touched(
    queue: JobQueue, database: HistoryDatabase, record: Callable[[], None]
) -> None:
    """The history of another store is left unchanged.

    With a wrong database URL, the jobs of two sites have the same ids.
    """
    queue.requests.submit(make_spec())
    record()
    before = database.get(1)
    cursor = database.cursor()
    assert cursor is not None
    assert database.turn_to("another", expected=cursor)

    queue.jobs.cancel(1)
    with pytest.raises(HistoryUnreachable, match="belongs to another store"):
        record()

    assert (before, Cursor(epoch="another")) == (database.get(1), database.cursor())


def test_two_recorders_that_notice_at_once_write_it_once(
    queue: JobQueue, history_url: str, store_url: str, record: Callable[[], None], database: HistoryDatabase
) -> None:
    """Two recorders that detect the loss at once record the jobs once: the cursor moves in the same transaction."""
    for _ in range(5):
        queue.requests.submit(make_spec())
    record()
    empty_tables(history_url)
    back = []
    together = threading.Barrier(2)

    def notification() -> None:
        own_queue, own_history = JobQueue(store_url), HistoryDatabase(history_url)
        together.wait()
        back.append(catch_up(own_queue, own_history))
        own_queue.close()
        own_history.close()

    threads = [threading.Thread(target=notification) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {5, None} == set(back)
    assert 5 == len(list(*database.survivors()))


def test_an_unreadable_job_does_not_prevent_the_record_of_others(
    queue: JobQueue, database: HistoryDatabase, history_url: str, store_url: str, record: Callable[[], None]
) -> None:
    """An unreadable job does not stop the others, for example after a validation rule became stricter."""
    for _ in range(3):
        queue.requests.submit(make_spec())
    record()
    client = connect(store_url)
    client.set("{gq}:s:2", "{}")
    client.close()
    empty_tables(history_url)

    record()

    assert [True, False, True] == [database.get(each) is not None for each in (1, 2, 3)]


def test_what_waits_is_written_down_again_with_what_it_waits_for(
    queue: JobQueue, database: HistoryDatabase, history_url: str, record: Callable[[], None]
) -> None:
    """Waiting jobs are recorded again with what they wait for, and survive a later loss of the store."""
    serve(queue)
    parent = queue.requests.submit(make_spec(waits=Waits(hold=True))).id
    waits = Waits(after=(Dependency(parent),), begin_at=datetime(2099, 1, 1, tzinfo=timezone.utc))
    child, retried = (
        queue.requests.submit(make_spec(waits=waits)).id,
        queue.requests.submit(make_spec(retries=Retries(times=2))).id,
    )
    ending = Ending.from_status(1)
    queue.runs.finish(
        retried, start(queue).token, state=JobState.FAILED, ending=ending, duration_s=1.0, devices=(DEVICE,)
    )
    before = [queue.jobs.get(each) for each in (parent, child, retried)]
    record()

    empty_tables(history_url)
    record()
    client = connect(queue.url)
    client.flushall()
    client.close()
    open_queue(queue, database, lease_s=300)

    assert before == [queue.jobs.get(each) for each in (parent, child, retried)]
