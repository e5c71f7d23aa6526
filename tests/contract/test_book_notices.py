"""The history as a queue of notifications, on SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from factories import make_spec
from outbox import Outbox

from gpuqueue.history.database import Book
from gpuqueue.history.notifications import Due
from gpuqueue.model.array import Array
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState
from gpuqueue.model.notification import Notice, Outcome, When
from gpuqueue.model.run import Ending

NOW = datetime(2026, 11, 2, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
TEAM, CHAT, COMMAND = Notice("team"), Notice("json://host/secret", When.FAIL), Notice("command:true")


def ended(outbox: Outbox, *job_ids: int) -> None:
    """Record failed jobs, each with a command and two messages, the second of which has number 2."""
    for job_id in job_ids:
        outbox.submit(job_id, make_spec(notices=(TEAM, COMMAND, CHAT)))
        outbox.claim(job_id)
        outbox.started(job_id)
        outbox.finish(job_id, Ending.from_status(1), JobState.FAILED)
    outbox.record()


def keys(due: list[Due]) -> list[tuple[int, int]]:
    """Return the job id and the message number of each due message."""
    return [(each.job_id, each.number) for each in due]


def test_a_message_is_due_once_its_job_has_ended(book: Book, outbox: Outbox) -> None:
    """A message is due once its job has ended, not before, even if that takes several batches.

    A command is no message.
    """
    outbox.submit(1, make_spec(notices=(TEAM, COMMAND, CHAT)))
    outbox.record()
    outbox.claim(1)
    outbox.started(1)
    outbox.record()
    assert [] == book.due_notices(now=NOW, most=9)

    outbox.finish(1, Ending.from_status(0), JobState.SUCCEEDED)
    outbox.record()

    assert [(1, 0), (1, 2)] == keys(book.due_notices(now=NOW, most=9))
    assert [(1, 0)] == keys(book.due_notices(now=NOW, most=1))


def test_the_oldest_ends_go_first(book: Book, outbox: Outbox) -> None:
    """The messages of the oldest ends are due first, whatever their job ids."""
    ended(outbox, 3)
    ended(outbox, 1)

    assert [(3, 0), (3, 2), (1, 0), (1, 2)] == keys(book.due_notices(now=NOW, most=9))


def test_one_sender_takes_a_message(book: Book, outbox: Outbox) -> None:
    """One sender takes a message. No other sender takes it until the given time, after which the next one does."""
    ended(outbox, 1)
    first, _ = book.due_notices(now=NOW, most=9)

    assert book.take_notice(first, until=NOW + MINUTE)
    assert not book.take_notice(first, until=NOW + MINUTE)
    assert [(1, 2)] == keys(book.due_notices(now=NOW, most=9))
    again, _ = book.due_notices(now=NOW + MINUTE, most=9)
    assert Due(job_id=1, number=0, tries=1) == again
    assert book.take_notice(again, until=NOW + 2 * MINUTE)


def test_what_was_noted_is_never_due_again(book: Book, outbox: Outbox) -> None:
    """A message with a recorded outcome is never due again, even if a slow sender postpones it later."""
    ended(outbox, 1)
    first, second = book.due_notices(now=NOW, most=9)
    book.settle_notice(first, Outcome.SENT, at=NOW)

    book.put_off_notice(first, until=NOW, trouble="too late")
    book.settle_notice(first, Outcome.GIVEN_UP, at=NOW, trouble="too late")
    book.put_off_notice(second, until=NOW + MINUTE, trouble="HTTP 500")

    assert [] == book.due_notices(now=NOW, most=9)
    assert [second] == book.due_notices(now=NOW + MINUTE, most=9)
    record = book.get(1)
    assert record is not None
    assert [(0, Outcome.SENT, None), (2, None, "HTTP 500")] == [
        (each.number, each.outcome, each.trouble) for each in record.told
    ]


def test_a_job_that_is_told_of_twice_keeps_what_was_noted(book: Book, outbox: Outbox) -> None:
    """A job that is recorded twice keeps its message outcomes.

    The outbox may repeat events that a history restored from a copy does not have.
    """
    ended(outbox, 1)
    for due in book.due_notices(now=NOW, most=9):
        book.settle_notice(due, Outcome.SENT, at=NOW)

    ended(outbox, 1)

    assert [] == book.due_notices(now=NOW, most=9)


@pytest.mark.parametrize("end", [JobState.CANCELLED, JobState.LOST])
def test_an_end_without_a_run_is_one(book: Book, outbox: Outbox, end: JobState) -> None:
    """A job that ends without a run has a due message as well: it waited and will never run."""
    outbox.submit(1, make_spec(notices=(TEAM,)))
    outbox.tell(1, Act.CANCEL if end is JobState.CANCELLED else Act.LOSE, end, attempt=0, token="1.a")
    outbox.record()

    assert [(1, 0)] == keys(book.due_notices(now=NOW, most=9))


def test_an_array_tells_and_its_members_do_not(book: Book, outbox: Outbox) -> None:
    """An array has one message, when its last member has ended. Its members have none."""
    outbox.submit(1, make_spec(notices=(TEAM,), array=Array.parse("0-1")))
    for index in (0, 1):
        outbox.claim(2 + index, of="1", index=str(index), left="" if index else "1")
        outbox.started(2 + index)
        outbox.finish(2 + index, Ending.from_status(0), JobState.SUCCEEDED)
    outbox.record()
    assert [] == book.due_notices(now=NOW, most=9)

    outbox.tell(1, Act.ARRAY, JobState.SUCCEEDED, attempt=0)
    outbox.record()

    assert [(1, 0)] == keys(book.due_notices(now=NOW, most=9))
