"""The history with the members of each array folded into one row, on each database."""

from __future__ import annotations

import pytest
from factories import make_spec
from outbox import Outbox

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.array import Array, Member
from gpuqueue.model.event import Act
from gpuqueue.model.history_query import HistoryQuery, Sort
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending

FAILED, SUCCEEDED = JobState.FAILED, JobState.SUCCEEDED


@pytest.fixture
def furnished(database: HistoryDatabase, outbox: Outbox) -> HistoryDatabase:
    """Return a history with job 1, array 2 of 4 members (3 to 6), job 7, and array 8 of 2 members (9, 10)."""
    for job_id, many in ((1, None), (2, "0-3"), (7, None), (8, "0-1")):
        outbox.submit(job_id, make_spec(array=Array.parse(many) if many else None))
    for array_id, statuses in ((2, (1, 0, 0, 1)), (8, (0, 0))):
        for index, status in enumerate(statuses):
            job_id = Member(array_id, index).id
            outbox.claim(job_id, of=str(array_id), index=str(index))
            outbox.started(job_id)
            outbox.finish(job_id, Ending.from_status(status), FAILED if status else SUCCEEDED)
    outbox.record()
    return database


def rows(database: HistoryDatabase, **query: object) -> list[tuple[int, dict[JobState, int]]]:
    """Return the id of each row, with its members by state."""
    found = database.folded(HistoryQuery(**query))  # type: ignore[arg-type]
    return [(row.record.job.id, dict(row.members)) for row in found]


def test_newest_first_each_array_is_one_row_and_each_other_job_is_one(furnished: HistoryDatabase) -> None:
    both = {SUCCEEDED: 2, FAILED: 2}
    assert [(8, {SUCCEEDED: 2}), (7, {}), (2, {**both}), (1, {})] == [
        (job_id, {state: number for state, number in members.items() if state.is_end})
        for job_id, members in rows(furnished)
    ]
    assert [1, 2, 7, 8] == [job_id for job_id, _ in rows(furnished, reverse=True)]


def test_only_matching_members_count(furnished: HistoryDatabase) -> None:
    """A filter selects members; their array is the row, although it did not run itself."""
    assert [(2, {FAILED: 2})] == rows(furnished, states=(FAILED,))
    assert [(2, {FAILED: 2})] == rows(furnished, exit_code=1)
    assert [(8, {SUCCEEDED: 2}), (2, {SUCCEEDED: 2, FAILED: 2})] == rows(furnished, host="nodeA")
    assert [] == rows(furnished, host="nodeB")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_pages_go_on_behind_an_array(furnished: HistoryDatabase, size: int, *, reverse: bool) -> None:
    """Pages together are the whole list, whether a page ends at an array or not."""
    found: list[int] = []
    after = None
    while True:
        page = furnished.folded(HistoryQuery(limit=size, after_id=after, reverse=reverse))
        if not page:
            break
        found += [row.record.job.id for row in page]
        after = page[-1].last_id
        assert len(found) <= 4

    assert ([1, 2, 7, 8] if reverse else [8, 7, 2, 1]) == found


def test_in_the_order_of_ends_an_array_is_where_it_has_ended(furnished: HistoryDatabase) -> None:
    """Its members are no rows of their own there, and pages go on behind it."""
    ended = [(7, {}), (1, {}), (8, {SUCCEEDED: 2}), (2, {SUCCEEDED: 2, FAILED: 2})]
    found = rows(furnished, sort=Sort.ENDED)
    assert sorted(job_id for job_id, _ in ended) == sorted(job_id for job_id, _ in found)
    ids = [job_id for job_id, _ in found]
    assert ids[2:] == [job_id for job_id, _ in rows(furnished, sort=Sort.ENDED, after_id=ids[1])]


def test_members_without_a_row_count(database: HistoryDatabase, outbox: Outbox) -> None:
    """Regression: of twelve members, the five that a cancel met before a device took them were in no count."""
    outbox.submit(1, make_spec(array=Array.parse("0-11")))
    for index in range(7):
        job_id = Member(1, index).id
        outbox.claim(job_id, of="1", index=str(index), left=f"{index + 1}-11")
        outbox.started(job_id)
        outbox.finish(job_id, Ending.from_status(int(index < 4)), FAILED if index < 4 else SUCCEEDED)
    outbox.record()
    assert [(1, {JobState.QUEUED: 5, SUCCEEDED: 3, FAILED: 4})] == rows(database)

    outbox.report(1, Act.CANCEL, JobState.CANCELLED, attempt=0, left="", held="")
    outbox.record()

    whole = {SUCCEEDED: 3, FAILED: 4, JobState.CANCELLED: 5}
    assert [(1, whole)] == rows(database) == rows(database, sort=Sort.ENDED)
    assert [(1, {JobState.CANCELLED: 5})] == rows(database, states=(JobState.CANCELLED,), sort=Sort.ENDED)
    assert [(1, {SUCCEEDED: 3, FAILED: 4})] == rows(database, host="nodeA")
