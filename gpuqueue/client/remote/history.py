"""The group ``client.history`` over the service. The methods are those of :class:`gpuqueue.client.history.History`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpuqueue.client.remote.link import Link
from gpuqueue.client.sweep_values import sweep_values
from gpuqueue.errors import JobNotFound
from gpuqueue.model import api, job_ref, times, validation
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.history_query import FoldedRow, Sort
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.learning_report import LearningReport
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
        asked = {name: value for name, value in locals().items() if name not in {"self", "limit", "after_id"}}
        query = _query(asked)
        found: list[Record] = []
        most, after = validation.count("limit", limit), after_id
        while True:
            asked = {**query, "limit": min(PAGE, most - len(found)), "after_id": after}
            page = self._link.get(api.HistoryPage, "/history", asked)
            found += page.records
            after = page.after_id
            if after is None or len(found) >= most:
                return found

    def folded(self, **asked: Any) -> list[FoldedRow]:
        """Return the jobs of :meth:`search`, with the members of each array folded into one row."""
        defaults = RemoteHistory.search.__kwdefaults__ or {}
        if not {*asked} <= {*defaults} - {"array"}:
            raise TypeError(f"folded() takes the arguments of search() without array, not {sorted(asked)}")
        wanted = {**defaults, **asked}
        query = _query(wanted)
        found: list[FoldedRow] = []
        most, after = validation.count("limit", wanted["limit"]), wanted["after_id"]
        while True:
            page = self._link.get(
                api.FoldedPage, "/history/folded", {**query, "limit": min(PAGE, most - len(found)), "after_id": after}
            )
            found += page.rows
            after = page.after_id
            if after is None or len(found) >= most:
                return found

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


def _query(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the criteria of a search as a query of the service."""
    return {
        "user": validation.text_or_none("user", asked["user"]),
        "name": validation.text_or_none("name", asked["name"]),
        "state": validation.words_of("states", asked["states"], JobState),
        "ending": validation.words_of("endings", asked["endings"], EndingKind),
        "exit_code": None if asked["exit_code"] is None else validation.count("exit_code", asked["exit_code"]),
        "array": None if asked["array"] is None else job_ref.job_id(asked["array"]),
        "tag": validation.words("tags", asked["tags"]),
        "since": times.moment("since", asked["since"]),
        "until": times.moment("until", asked["until"]),
        "device": validation.text_or_none("device", asked["device"]),
        "model": validation.text_or_none("model", asked["model"]),
        "host": validation.text_or_none("host", asked["host"]),
        "min_peak_bytes": validation.size_or_none("min_peak", asked["min_peak"]),
        "min_duration_s": validation.duration_or_none("min_duration", asked["min_duration"]),
        "max_duration_s": validation.duration_or_none("max_duration", asked["max_duration"]),
        "text": validation.text_or_none("text", asked["text"]),
        "sort": validation.word("sort", asked["sort"], Sort),
        "reverse": bool(asked["reverse"]),
        "before_id": None if asked["before_id"] is None else job_ref.job_id(asked["before_id"]),
    }
