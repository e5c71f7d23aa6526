"""Reading what was recorded since the last read, on SQLite and on PostgreSQL: each event once, in bounded parts."""

from __future__ import annotations

from collections import Counter

from outbox import Outbox

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.queries import Position, RecordedEvent
from gpuqueue.model.event import Act, Cursor
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, EndingKind


def read_all(database: HistoryDatabase, after: Position, most: int) -> tuple[list[RecordedEvent], Position]:
    """Return everything behind *after*, read in parts."""
    found: list[RecordedEvent] = []
    is_more = True
    while is_more:
        some, after, is_more = database.recorded_events(after, most)
        assert most >= len(some)
        found += some
    return found, after


def run(outbox: Outbox, job_id: int, ending: Ending, state: JobState) -> None:
    """Report a whole job."""
    outbox.submit(job_id)
    outbox.claim(job_id, start="backfill")
    outbox.started(job_id)
    outbox.finish(job_id, ending, state)


def test_each_event_is_read_once_whatever_the_parts(database: HistoryDatabase, outbox: Outbox) -> None:
    """All events of the test are of one millisecond, where ``…-10`` precedes ``…-9`` as text."""
    start = database.recorded_position()
    for job_id in range(1, 8):
        run(outbox, job_id, Ending.from_status(0), JobState.SUCCEEDED)
    outbox.record(batch=5)

    for most in (1, 3, 100):
        found, _ = read_all(database, start, most)
        assert {Act.SUBMIT: 7, Act.CLAIM: 7, Act.STARTED: 7, Act.FINISH: 7} == Counter(each.act for each in found)

    found, reached = read_all(database, start, 3)
    assert [] == read_all(database, reached, 3)[0]
    run(outbox, 9, Ending.from_status(1), JobState.FAILED)
    outbox.record()
    found, _ = read_all(database, reached, 3)
    assert [Act.SUBMIT, Act.CLAIM, Act.STARTED, Act.FINISH] == sorted((each.act for each in found), key=list(Act).index)


def test_an_event_has_what_became_of_its_run(database: HistoryDatabase, outbox: Outbox) -> None:
    start = database.recorded_position()
    run(outbox, 1, Ending.stopped(EndingKind.TIMED_OUT, -15), JobState.FAILED)
    outbox.record()

    by_act = {each.act: each for each in read_all(database, start, 100)[0]}

    assert 2.0 == by_act[Act.STARTED].wait_s
    assert "backfill" == str(by_act[Act.CLAIM].start_kind)
    assert (EndingKind.TIMED_OUT, None) == (by_act[Act.FINISH].ending, by_act[Act.FINISH].exit_code)


def test_what_was_recorded_before_the_first_read_is_not_counted(database: HistoryDatabase, outbox: Outbox) -> None:
    run(outbox, 1, Ending.from_status(0), JobState.SUCCEEDED)
    outbox.record()

    assert [] == read_all(database, database.recorded_position(), 10)[0]


def test_a_new_store_is_read_from_its_beginning(database: HistoryDatabase, outbox: Outbox) -> None:
    """After the store lost its data its events have a new epoch, and none of them is missed."""
    run(outbox, 1, Ending.from_status(0), JobState.SUCCEEDED)
    outbox.record()
    position = database.recorded_position()
    assert database.turn_to("e2", expected=outbox.cursor)
    outbox.submit(2)
    assert database.apply(outbox.reported, expected=Cursor(epoch="e2"), epoch="e2")

    assert [Act.SUBMIT] == [each.act for each in read_all(database, position, 10)[0]]
