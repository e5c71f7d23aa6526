"""The group ``client.history`` over the service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from gpuqueue.client.history import History
from gpuqueue.client.remote.link import Link
from gpuqueue.client.remote.operations import asking
from gpuqueue.errors import JobNotFound
from gpuqueue.model import api
from gpuqueue.model.array import Array
from gpuqueue.model.history_query import FoldedRow, HistoryQuery
from gpuqueue.model.job import Job
from gpuqueue.model.run import Record

Page = TypeVar("Page", api.HistoryPage, api.FoldedPage)
Item = TypeVar("Item")

#: Jobs in one page of a search.
PAGE = 500


@asking("history")
class RemoteHistory(History):
    """The recorded jobs, with their runs, as the service's history has them."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def records_of(self, query: HistoryQuery) -> list[Record]:
        """Return the jobs of *query*, as :meth:`search` does."""
        return self._all(query, "/history", api.HistoryPage, lambda page: page.records)

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

    def _array(self, array_id: int) -> Array | None:
        try:
            job = self._link.get(Job, f"/jobs/{array_id}")
        except JobNotFound:
            return None
        return job.spec.array
