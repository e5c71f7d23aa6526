"""Repeating jobs in the history, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.job_spec import Account
from gpuqueue.model.repeating import PAUSED, Missed, Repetition

NOW = datetime(2026, 11, 2, 3, tzinfo=timezone.utc)
DAY = timedelta(days=1)
NIGHTLY = Repetition(
    id="a1",
    name="nightly",
    owner=Account(name="ada", uid=1001, host="nodeA"),
    token_id=None,
    times="0 3 * * *",
    zone="UTC",
    overlap=False,
    catch_up=True,
    request='{"argv":["true"],"cwd":"/"}',
    made_at=NOW - DAY,
    next_at=NOW,
)


def only(database: HistoryDatabase) -> Repetition:
    """Return the one repeating job."""
    (found,) = database.repeating_jobs()
    return found


def test_a_repeating_job_is_found_as_it_was_added(database: HistoryDatabase) -> None:
    """One owner has one of a name; another owner, or a later account of the same name, may have it too."""
    others = [
        replace(NIGHTLY, id="b1", owner=replace(NIGHTLY.owner, name="bob")),
        replace(NIGHTLY, id="b2", owner=replace(NIGHTLY.owner, uid=1002), token_id="tok", seal="5ea1"),
    ]

    assert [True, True, True] == [database.add_repeating(each) for each in (NIGHTLY, *others)]
    assert not database.add_repeating(replace(NIGHTLY, id="c3"))
    assert [NIGHTLY, others[1]] == database.repeating_jobs("ada")
    assert [NIGHTLY, others[1], others[0]] == database.repeating_jobs()


def test_what_is_due_is_found_by_its_time_and_its_owner(database: HistoryDatabase) -> None:
    later = replace(NIGHTLY, id="b1", name="later", next_at=NOW + DAY)
    for each in (NIGHTLY, later):
        database.add_repeating(each)

    assert [] == database.due_repeating(now=NOW - timedelta(seconds=1))
    assert [NIGHTLY] == database.due_repeating(now=NOW)
    assert [NIGHTLY, later] == database.due_repeating(now=NOW + DAY, uid=1001)
    assert [] == database.due_repeating(now=NOW + DAY, uid=1002)
    assert NOW == database.next_repeating()
    assert database.next_repeating(uid=1002) is None


def test_a_time_begins_once_and_is_settled_once(database: HistoryDatabase) -> None:
    """Of two services that have read the same, one begins. What has begun is due until it is settled."""
    database.add_repeating(NIGHTLY)

    assert database.begin_repeating(NIGHTLY, NOW, 17, Missed(count=2, last_at=NOW - DAY, why="down"))
    assert not database.begin_repeating(NIGHTLY, NOW, 18, None)

    begun = only(database)
    assert (NOW, 17, 2, "down") == (begun.begun_at, begun.begun_job_id, begun.missed, begun.missed_why)
    assert [begun] == database.due_repeating(now=NOW - DAY)
    assert not database.settle_repeating(NIGHTLY, next_at=NOW + DAY, job_id=18)
    assert database.settle_repeating(begun, next_at=NOW + DAY, job_id=17)
    assert not database.settle_repeating(begun, next_at=NOW + 2 * DAY, job_id=17)
    done = only(database)
    assert (NOW, 17, NOW + DAY, None) == (done.last_at, done.last_job_id, done.next_at, done.begun_job_id)


def test_a_pause_while_a_job_is_submitted_stays(database: HistoryDatabase) -> None:
    """The submit that has begun is still found, and settled without a next time."""
    database.add_repeating(NIGHTLY)
    database.begin_repeating(NIGHTLY, NOW, 17, None)
    database.stop_repeating(NIGHTLY.id, PAUSED)
    database.stop_repeating(NIGHTLY.id, "another reason")

    (begun,) = database.due_repeating(now=NOW)
    assert database.settle_repeating(begun, next_at=None, stopped=begun.stopped, job_id=17)
    assert (None, PAUSED, 17) == (only(database).next_at, only(database).stopped, only(database).last_job_id)

    assert database.go_on_repeating(replace(only(database), token_id="new", seal="s"), NOW + DAY)
    assert (NOW + DAY, None, "new", "s") == (
        only(database).next_at,
        only(database).stopped,
        only(database).token_id,
        only(database).seal,
    )
    assert database.remove_repeating(NIGHTLY.id)
    assert not database.go_on_repeating(NIGHTLY, NOW)
    assert [] == database.repeating_jobs()


def test_missed_times_add_up(database: HistoryDatabase) -> None:
    database.add_repeating(NIGHTLY)
    for day in (1, 2):
        missed = Missed(count=day, last_at=NOW + day * DAY, why=f"job {day} runs")
        assert database.settle_repeating(only(database), next_at=NOW + (day + 1) * DAY, missed=missed)

    found = only(database)
    assert (3, NOW + 2 * DAY, "job 2 runs", None) == (found.missed, found.missed_at, found.missed_why, found.last_at)


def test_the_snapshots_of_repeating_jobs_are_known(database: HistoryDatabase) -> None:
    database.add_repeating(NIGHTLY)
    database.add_repeating(replace(NIGHTLY, id="b1", name="far", request='{"argv":["true"],"snapshot":"abc"}'))

    assert [(NIGHTLY.owner, "far", "abc")] == database.repeating_snapshots()
