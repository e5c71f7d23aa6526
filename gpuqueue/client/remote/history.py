"""The group ``client.history`` over the service. The methods are those of :class:`gpuqueue.client.history.History`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from gpuqueue.client.fields import from_fields
from gpuqueue.client.remote.link import Link
from gpuqueue.client.sweep_values import sweep_values
from gpuqueue.errors import JobNotFound
from gpuqueue.model import api, job_ref, times, validation
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.history_query import FoldedRow, HistoryQuery
from gpuqueue.model.job import Job
from gpuqueue.model.learning_report import LearningReport
from gpuqueue.model.run import Record
from gpuqueue.model.statistics import By, Course, Statistics

if TYPE_CHECKING:
    from gpuqueue.client.history import History as Direct
else:
    Direct = object

Page = TypeVar("Page", api.HistoryPage, api.FoldedPage)
Item = TypeVar("Item")

#: Jobs in one page of a search.
PAGE = 500


class RemoteHistory(Direct):
    """The recorded jobs, with their runs, as the service's history has them."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @from_fields(lambda: HistoryQuery.of)
    def search(self, query: HistoryQuery) -> list[Record]:
        """Return the first *limit* jobs that match all criteria, with their runs, in the order of *sort*."""
        return self.records_of(query)

    def records_of(self, query: HistoryQuery) -> list[Record]:
        """Return the jobs of *query*, as :meth:`search` does."""
        return self._all(query, "/history", api.HistoryPage, lambda page: page.records)

    @from_fields(lambda: HistoryQuery.of)
    def folded(self, query: HistoryQuery) -> list[FoldedRow]:
        """Return the jobs of :meth:`search`, with the members of each array folded into one row."""
        return self.rows_of(query)

    def rows_of(self, query: HistoryQuery) -> list[FoldedRow]:
        """Return the rows of *query*, as :meth:`folded` does."""
        query.must_fold()
        return self._all(query, "/history/folded", api.FoldedPage, lambda page: page.rows)

    def _all(
        self, query: HistoryQuery, path: str, kind: type[Page], items_of: Callable[[Page], Sequence[Item]]
    ) -> list[Item]:
        """Return the items of all pages of the answer."""
        items: list[Item] = []
        after = query.after_id
        while True:
            asked = {**query.parameters(), "limit": min(PAGE, query.limit - len(items)), "after_id": after}
            page = self._link.get(kind, path, asked)
            items += items_of(page)
            after = page.after_id
            if after is None or len(items) >= query.limit:
                return items

    def params(self, records: Sequence[Record]) -> dict[int, dict[str, str]]:
        """Return the values of the sweep of each of *records* that is a member of one, by the id of the job."""
        return sweep_values(records, self._array)

    def _array(self, array_id: int) -> Array | None:
        try:
            job = self._link.get(Job, f"/jobs/{array_id}")
        except JobNotFound:
            return None
        return job.spec.array

    def has(self, job: int) -> bool:
        """Return whether the history has the job with this id."""
        return self._link.get(api.Whether, f"/history/{job_ref.job_id(job)}/known").answer

    def never_began(self, array: int) -> Indexes:
        """Return the members of an array that were cancelled before any worker claimed them."""
        path = f"/history/{job_ref.job_id(array)}/never-began"
        return self._link.get(api.NeverBegan, path).indexes

    def stats(
        self,
        by: By | str = "user",
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        user: str | None = None,
    ) -> Statistics:
        """Return statistics of the runs in a period, grouped by user, device, host or local day of the service."""
        query = {"by": validation.word("by", by, By), **_period(since, until, user)}
        return self._link.get(Statistics, "/stats", query)

    def course(
        self,
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        steps: int = 30,
        user: str | None = None,
    ) -> Course:
        """Return statistics of a period as a time series of *steps* equal intervals."""
        query = {"steps": validation.count("steps", steps), **_period(since, until, user)}
        return self._link.get(Course, "/stats/course", query)

    def learning(
        self,
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        user: str | None = None,
    ) -> LearningReport:
        """Return how learned memory would have done over the jobs that ended in a period, beside simple rules."""
        return self._link.get(LearningReport, "/stats/learning", _period(since, until, user))


def _period(since: str | datetime | None, until: str | datetime | None, user: str | None) -> dict[str, Any]:
    return {
        "since": times.moment("since", since),
        "until": times.moment("until", until),
        "user": validation.text_or_none("user", user),
    }
