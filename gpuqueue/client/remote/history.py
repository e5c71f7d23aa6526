"""The group ``client.history`` over the service. The methods are those of :class:`gpuqueue.client.history.History`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpuqueue.client.remote.link import Link
from gpuqueue.model import api, times, validation
from gpuqueue.model.array import Indexes
from gpuqueue.model.history_query import Sort
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind, Record
from gpuqueue.model.statistics import By, Course, Statistics

#: Jobs in one page of a search.
PAGE = 500


class RemoteHistory:
    """The recorded jobs, with their runs, as the service's history has them."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def search(  # noqa: PLR0913 - one argument for each search criterion
        self,
        *,
        user: str | None = None,
        name: str | None = None,
        states: Sequence[JobState | str] = (),
        endings: Sequence[EndingKind | str] = (),
        exit_code: int | None = None,
        array: int | None = None,
        tags: Sequence[str] = (),
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        device: str | None = None,
        model: str | None = None,
        host: str | None = None,
        min_peak: str | int | None = None,
        min_duration: str | float | None = None,
        max_duration: str | float | None = None,
        text: str | None = None,
        sort: Sort | str = "id",
        reverse: bool = False,
        limit: int = 50,
        before_id: int | None = None,
        after_id: int | None = None,
    ) -> list[Record]:
        """Return the first *limit* jobs that match all criteria, with their runs, in the order of *sort*."""
        query = {
            "user": validation.text_or_none("user", user),
            "name": validation.text_or_none("name", name),
            "state": validation.words_of("states", states, JobState),
            "ending": validation.words_of("endings", endings, EndingKind),
            "exit_code": None if exit_code is None else validation.count("exit_code", exit_code),
            "array": None if array is None else validation.job_id(array),
            "tag": validation.words("tags", tags),
            "since": times.moment("since", since),
            "until": times.moment("until", until),
            "device": validation.text_or_none("device", device),
            "model": validation.text_or_none("model", model),
            "host": validation.text_or_none("host", host),
            "min_peak_bytes": validation.size_or_none("min_peak", min_peak),
            "min_duration_s": validation.duration_or_none("min_duration", min_duration),
            "max_duration_s": validation.duration_or_none("max_duration", max_duration),
            "text": validation.text_or_none("text", text),
            "sort": validation.word("sort", sort, Sort),
            "reverse": bool(reverse),
            "before_id": None if before_id is None else validation.job_id(before_id),
        }
        found: list[Record] = []
        most, after = validation.count("limit", limit), after_id
        while True:
            asked = {**query, "limit": min(PAGE, most - len(found)), "after_id": after}
            page: api.HistoryPage = self._link.get(api.HistoryPage, "/history", asked)
            found += page.records
            after = page.after_id
            if after is None or len(found) >= most:
                return found

    def has(self, job: int) -> bool:
        """Return whether the history has the job with this id."""
        answer: bool = self._link.get(api.Whether, f"/history/{validation.job_id(job)}/known").answer
        return answer

    def never_began(self, array: int) -> Indexes:
        """Return the members of an array that were cancelled before any worker claimed them."""
        path = f"/history/{validation.job_id(array)}/never-began"
        found: Indexes = self._link.get(api.NeverBegan, path).indexes
        return found

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
        found: Statistics = self._link.get(Statistics, "/stats", query)
        return found

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
        found: Course = self._link.get(Course, "/stats/course", query)
        return found


def _period(since: str | datetime | None, until: str | datetime | None, user: str | None) -> dict[str, Any]:
    return {
        "since": times.moment("since", since),
        "until": times.moment("until", until),
        "user": validation.text_or_none("user", user),
    }
