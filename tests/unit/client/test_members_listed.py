"""Tests of how the members of an array are read for ``gpuqueue logs ARRAY``. There may be very many."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

from factories import make_spec

from gpuqueue.client.listing import MEMBERS_PAGE as PAGE
from gpuqueue.client.listing import members
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.model.array import Array, Indexes, Member, Tally
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.run import Record

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=timezone.utc)
SIZE = 2 * PAGE + 200
#: Members that run, of which one is not in the history yet; that wait in the array; that were cancelled before that.
RUNNING, WAITING, CANCELLED = (3, PAGE + 7), Indexes.parse(f"{SIZE - 50}-{SIZE - 1}"), Indexes.parse("100-149")


def job(job_id: int, state: JobState, **more: Any) -> Job:
    """Return a job in this state."""
    return Job(id=job_id, spec=make_spec(), state=state, submitted_at=NOW, **more)


class Site:
    """A client of a queue with one large array, that counts what it is asked."""

    def __init__(self, *, is_away: bool = False) -> None:
        self._is_away = is_away
        self.limits: list[int] = []
        self.single: list[str] = []
        self.history = SimpleNamespace(search=self._search, never_began=self._never_began)
        self.array = Job(
            id=17,
            spec=make_spec(array=Array(indexes=Indexes((range(SIZE),)))),
            state=JobState.RUNNING,
            submitted_at=NOW,
            tally=Tally(left=WAITING, held=Indexes(), ended={}),
        )

    def _never_began(self, _array: int) -> Indexes:
        if self._is_away:
            raise HistoryUnreachable("away")
        return CANCELLED

    def _search(self, *, array: int, reverse: bool, limit: int, after_id: int, before_id: int) -> list[Record]:
        if self._is_away:
            raise HistoryUnreachable("away")
        assert (17, True) == (array, reverse)
        self.limits.append(limit)
        ids = [Member(17, index).id for index in range(SIZE) if index not in WAITING and index not in CANCELLED]
        here = [job_id for job_id in ids if after_id < job_id < before_id][:limit]
        return [Record(job=self._member(job_id)) for job_id in here if job_id != Member(17, RUNNING[1]).id]

    def _member(self, job_id: int) -> Job:
        member = Member.of(job_id, 17)
        return job(job_id, JobState.RUNNING if member.index in RUNNING else JobState.SUCCEEDED, member=member)

    def read(self, name: str) -> Record:
        """Return one member."""
        self.single.append(name)
        return Record(job=self._member(Member(17, int(name.partition("_")[2])).id))

    def shown(self) -> Sequence[int]:
        """Return the indexes of the members in the order in which they come."""
        client: Any = self
        return [record.job.member.index for record in members(client, self.array, self.read) if record.job.member]


def test_members_that_have_ended_are_read_by_the_page() -> None:
    """Regression: each of thousands of members was a request of its own. At most a page of them is in memory."""
    site = Site()

    assert [i for i in range(SIZE) if i not in WAITING and i not in CANCELLED] == site.shown()
    assert [f"17_{index}" for index in RUNNING] == site.single
    assert [PAGE] * 3 == site.limits


def test_members_are_read_one_by_one_without_a_history() -> None:
    """The queue still has the running ones."""
    site = Site(is_away=True)

    assert [i for i in range(SIZE) if i not in WAITING] == site.shown()
    assert SIZE - len(WAITING) == len(site.single)
