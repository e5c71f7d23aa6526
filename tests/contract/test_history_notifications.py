"""The history as a queue of notifications, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from factories import make_spec
from outbox import RUN, Outbox, known

from gpuqueue.codec.request import encode_spec
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.notifications import Due
from gpuqueue.model.array import Array
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState
from gpuqueue.model.notification import FIRST_BEFORE_END, Notification, Outcome, When, first_about, mark_and_attempt
from gpuqueue.model.run import Ending, EndingKind

NOW = datetime(2026, 11, 2, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
TEAM, CHAT = Notification("team"), Notification("json://host/secret", When.FAIL)


def ended(outbox: Outbox, *job_ids: int) -> None:
    """Record failed jobs, each with two messages."""
    for job_id in job_ids:
        outbox.submit(job_id, make_spec(notifications=(TEAM, CHAT)))
        outbox.claim(job_id)
        outbox.started(job_id)
        outbox.finish(job_id, Ending.from_status(1), JobState.FAILED)
    outbox.record()


def keys(due: list[Due]) -> list[tuple[int, int]]:
    """Return the job id and the message number of each due message."""
    return [(each.job_id, each.number) for each in due]


def test_a_message_is_due_once_its_job_has_ended(database: HistoryDatabase, outbox: Outbox) -> None:
    """A message is due once its job has ended, not before, even if that takes several batches."""
    outbox.submit(1, make_spec(notifications=(TEAM, CHAT)))
    outbox.record()
    outbox.claim(1)
    outbox.started(1)
    outbox.record()
    assert [] == database.due_notifications(now=NOW, most=9)

    outbox.finish(1, Ending.from_status(0), JobState.SUCCEEDED)
    outbox.record()

    assert [(1, 0), (1, 1)] == keys(database.due_notifications(now=NOW, most=9))
    assert [(1, 0)] == keys(database.due_notifications(now=NOW, most=1))


def test_the_messages_of_the_oldest_ends_are_due_first_whatever_their_job_ids(
    database: HistoryDatabase, outbox: Outbox
) -> None:
    ended(outbox, 3)
    ended(outbox, 1)

    assert [(3, 0), (3, 1), (1, 0), (1, 1)] == keys(database.due_notifications(now=NOW, most=9))


def test_one_sender_takes_a_message(database: HistoryDatabase, outbox: Outbox) -> None:
    # No other sender takes it until the given time, after which the next one does.
    ended(outbox, 1)
    first, _ = database.due_notifications(now=NOW, most=9)

    assert database.take_notification(first, until=NOW + MINUTE)
    assert not database.take_notification(first, until=NOW + MINUTE)
    assert [(1, 1)] == keys(database.due_notifications(now=NOW, most=9))
    again, _ = database.due_notifications(now=NOW + MINUTE, most=9)
    assert Due(job_id=1, number=0, tries=1) == again
    assert database.take_notification(again, until=NOW + 2 * MINUTE)


def test_what_was_noted_is_never_due_again(database: HistoryDatabase, outbox: Outbox) -> None:
    """A message with a recorded outcome is never due again, even if a slow sender postpones it later."""
    ended(outbox, 1)
    first, second = database.due_notifications(now=NOW, most=9)
    database.settle_notification(first, Outcome.SENT, at=NOW)

    database.put_off_notification(first, until=NOW, trouble="too late")
    database.settle_notification(first, Outcome.GIVEN_UP, at=NOW, trouble="too late")
    database.put_off_notification(second, until=NOW + MINUTE, trouble="HTTP 500")

    assert [] == database.due_notifications(now=NOW, most=9)
    assert [second] == database.due_notifications(now=NOW + MINUTE, most=9)
    record = database.get(1)
    assert record is not None
    assert [(0, Outcome.SENT, None), (1, None, "HTTP 500")] == [
        (each.number, each.outcome, each.trouble) for each in record.reported
    ]


def test_a_job_that_is_recorded_twice_keeps_its_notes(database: HistoryDatabase, outbox: Outbox) -> None:
    # The outbox may repeat events that a history restored from a copy does not have.
    ended(outbox, 1)
    for due in database.due_notifications(now=NOW, most=9):
        database.settle_notification(due, Outcome.SENT, at=NOW)

    ended(outbox, 1)

    assert [] == database.due_notifications(now=NOW, most=9)


@pytest.mark.parametrize("end", [JobState.CANCELLED, JobState.LOST])
def test_an_end_without_a_run_is_one(database: HistoryDatabase, outbox: Outbox, end: JobState) -> None:
    """A job that ends without a run has a due message as well: it waited and will never run."""
    outbox.submit(1, make_spec(notifications=(TEAM,)))
    outbox.report(1, Act.CANCEL if end is JobState.CANCELLED else Act.LOSE, end, attempt=0, token="1.a")
    outbox.record()

    assert [(1, 0)] == keys(database.due_notifications(now=NOW, most=9))


def test_an_array_has_one_message_when_its_last_member_has_ended(database: HistoryDatabase, outbox: Outbox) -> None:
    # Its members have none.
    outbox.submit(1, make_spec(notifications=(TEAM,), array=Array.parse("0-1")))
    for index in (0, 1):
        outbox.claim(2 + index, of="1", index=str(index), left="" if index else "1")
        outbox.started(2 + index)
        outbox.finish(2 + index, Ending.from_status(0), JobState.SUCCEEDED)
    outbox.record()
    assert [] == database.due_notifications(now=NOW, most=9)

    outbox.report(1, Act.ARRAY, JobState.SUCCEEDED, attempt=0)
    outbox.record()

    assert [(1, 0)] == keys(database.due_notifications(now=NOW, most=9))


def test_an_array_whose_rest_is_held_is_reported_once_before_its_end(database: HistoryDatabase, outbox: Outbox) -> None:
    """A hold by the queue has a reason. A user who holds it knows."""
    outbox.submit(1, make_spec(array=Array.parse("0-9"), notifications=(TEAM,)))
    outbox.report(1, Act.HOLD, JobState.HELD, attempt=0, left="", held="0-9")
    outbox.record()
    assert [] == database.due_notifications(now=NOW, most=9)

    for _ in range(2):
        because = "3 of its members failed and none succeeded"
        outbox.report(1, Act.HOLD, JobState.HELD, attempt=0, left="", held="3-9", because=because)
        outbox.record()

    assert [(1, FIRST_BEFORE_END)] == keys(database.due_notifications(now=NOW, most=9))
    record = known(database, 1)
    assert (because, "3-9") == (record.job.because, str(record.job.tally.held) if record.job.tally else "")


def test_a_later_hold_of_an_array_is_reported_again(database: HistoryDatabase, outbox: Outbox) -> None:
    """Regression: after a release the rest was held a second time, and nobody heard of it."""
    outbox.submit(1, make_spec(array=Array.parse("0-9"), notifications=(TEAM, CHAT)))
    for number in (3, 6):
        because = f"{number} of its members failed and none succeeded"
        outbox.report(1, Act.HOLD, JobState.HELD, attempt=0, left="", held=f"{number}-9", because=because)
        outbox.record()

        found = database.due_notifications(now=NOW, most=9)
        assert [(1, FIRST_BEFORE_END), (1, FIRST_BEFORE_END + 1)] == keys(found)
        for each in found:
            assert database.take_notification(each, until=NOW + MINUTE)
            database.settle_notification(each, Outcome.SENT, at=NOW)
        outbox.report(1, Act.RELEASE, JobState.QUEUED, attempt=0, left=f"{number}-9", held="", because="")
        outbox.record()
        assert [] == database.due_notifications(now=NOW + MINUTE, most=9)


def test_each_kind_of_mark_of_a_run_is_reported_once_and_kept(database: HistoryDatabase, outbox: Outbox) -> None:
    """The next run of the job is another one. The run has its marks for ever, also those that are over."""
    outbox.submit(1, make_spec(notifications=(TEAM, CHAT)))
    outbox.claim(1)
    outbox.started(1)
    nan, stalled = {"since": "1000", "what": "loss is NaN"}, {"since": "2000", "until": "3000"}
    for kind, stage, marks in (
        ("nan", "1", {"nan": nan}),
        ("stalled", "1", {"nan": nan, "stalled": {"since": "2000"}}),
        ("stalled", "0", {"nan": nan, "stalled": stalled}),
        ("nan", "1", {"nan": nan, "stalled": stalled}),
    ):
        text = json.dumps(marks)
        outbox.report(1, Act.RUN_MARK, JobState.RUNNING, token=RUN, kind=kind, stage=stage, marks=text, detail=kind)
    outbox.record(2)

    numbers = sorted(first_about(kind, 1) + place for kind in ("nan", "stalled") for place in (0, 1))
    assert [(1, number) for number in numbers] == sorted(keys(database.due_notifications(now=NOW, most=9)))
    assert [("nan", 1), ("nan", 1), ("stalled", 1), ("stalled", 1)] == [mark_and_attempt(each) for each in numbers]
    outbox.finish(1, Ending.stopped(EndingKind.NAN, -15, "loss is NaN"), JobState.FAILED)
    outbox.record()
    (run,) = known(database, 1).runs
    assert [("nan", 1.0, None), ("stalled", 2.0, 3.0)] == [
        (each.kind, each.since.timestamp(), each.until and each.until.timestamp()) for each in run.marks
    ]
    assert first_about("nan", 2) not in numbers


@pytest.mark.parametrize("marks", ["", "[", '{"nan":7}', '{"nan":{"since":"x"}}'])
def test_damaged_marks_stop_no_recorder(database: HistoryDatabase, outbox: Outbox, marks: str) -> None:
    """The event is stored as it is."""
    outbox.submit(1)
    outbox.claim(1)
    outbox.report(1, Act.RUN_MARK, JobState.RUNNING, token=RUN, kind="nan", stage="1", marks=marks, detail="d")
    outbox.record()

    assert () == known(database, 1).runs[0].marks


def test_an_idle_run_is_reported_once_before_its_end(database: HistoryDatabase, outbox: Outbox) -> None:
    """Each target gets one message about an idle run while it goes on, however often it is marked."""
    outbox.submit(1, make_spec(notifications=(TEAM, CHAT)))
    outbox.claim(1)
    outbox.started(1)
    for stage in ("1", "2", "0", "1"):
        outbox.report(1, Act.IDLE, JobState.RUNNING, token=RUN, stage=stage, since="0", detail=f"stage {stage}")
    outbox.record(2)

    found = database.due_notifications(now=NOW, most=9)
    assert [(1, FIRST_BEFORE_END), (1, FIRST_BEFORE_END + 1)] == keys(found)
    for each in found:
        assert database.take_notification(each, until=NOW + MINUTE)
        database.settle_notification(each, Outcome.SENT, at=NOW)
    outbox.report(1, Act.IDLE, JobState.RUNNING, token=RUN, stage="1", since="0", detail="again")
    outbox.record()
    assert [] == database.due_notifications(now=NOW + 2 * MINUTE, most=9)

    record = known(database, 1)
    assert [f"stage {stage}" for stage in ("1", "2", "0", "1")] + ["again"] == [note.text for note in record.notes]
    assert [0, 1, FIRST_BEFORE_END, FIRST_BEFORE_END + 1] == [each.number for each in record.reported]


def test_an_edit_changes_who_gets_the_messages(database: HistoryDatabase, outbox: Outbox) -> None:
    """Before the end a job has as many messages as targets; those of an edit replace the others."""
    outbox.submit(1, make_spec(notifications=(TEAM, CHAT)))
    outbox.submit(2, make_spec(notifications=(TEAM,)))
    outbox.record()
    for job_id, targets in ((1, (CHAT,)), (2, ())):
        outbox.report(job_id, Act.EDIT, JobState.QUEUED, spec=encode_spec(make_spec(notifications=targets)))
    outbox.submit(3, make_spec(notifications=(TEAM,)))
    outbox.report(3, Act.EDIT, JobState.QUEUED, spec=encode_spec(make_spec(notifications=(TEAM, CHAT))))
    outbox.record()
    for job_id in (1, 2, 3):
        outbox.claim(job_id)
        outbox.started(job_id)
        outbox.finish(job_id, Ending.from_status(1), JobState.FAILED)
    outbox.record()

    assert [(1, 0), (3, 0), (3, 1)] == keys(database.due_notifications(now=NOW, most=9))
    record = database.get(1)
    assert record is not None
    assert (CHAT,) == record.job.spec.notifications
