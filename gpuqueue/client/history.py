"""The history: searches recorded jobs and computes statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from gpuqueue.client.connection import Connection
from gpuqueue.client.sweep_values import sweep_values
from gpuqueue.errors import BadRequest, Unreachable
from gpuqueue.lazy.imports import later
from gpuqueue.model import job_ref, times, validation
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, tags_of

if TYPE_CHECKING:
    from gpuqueue.model import history_query
    from gpuqueue.model import run as runs
    from gpuqueue.model.array import Array, Indexes
    from gpuqueue.model.history_query import FoldedRow, HistoryQuery, Sort
    from gpuqueue.model.learning_report import LearningReport
    from gpuqueue.model.run import EndingKind, Record
    from gpuqueue.model.statistics import By, Course, Statistics
else:
    history_query = later("gpuqueue.model.history_query")
    runs = later("gpuqueue.model.run")

#: Default period of statistics.
STATS_PERIOD = timedelta(days=30)


class History:
    """The recorded jobs, with their runs. A job is recorded a moment after each of its changes.

    Searches find only the jobs of *owner*, if it is given.
    """

    def __init__(self, connection: Connection, *, owner: Account | None = None) -> None:
        self._connection = connection
        self._owner = owner

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
        """Return the first *limit* jobs that match all criteria, with their runs, in the order of *sort*.

        Args:
            user: The submitting account.
            name: The whole name, or a pattern such as ``"sweep*"``.
            states: The job's state is one of these.
            endings: The ending of the current or last run is one of these.
            exit_code: The exit code of the current or last run. 128 + n also matches a run killed by signal n,
                124 a run that exceeded its time limit, and 130 a cancelled run.
            array: The id of an array. Only its members match.
            tags: The job has all of these tags.
            since: The job was submitted at this time or later: a datetime, or a text such as ``"7d"`` (ago).
            until: The job was submitted before this time, in the same forms.
            device: ``HOST:INDEX``, a UUID or a prefix of one. A job matches if any of its runs used the device.
            model: A part of a device's name, such as ``"A100"``. A job matches if any of its runs used such a device.
            host: The host of the current or last run.
            min_peak: Minimum peak memory of the current or last run, summed over its devices: bytes or ``"20G"``.
            min_duration: Minimum duration of the current or last run: seconds or a text such as ``"2h"``.
            max_duration: Maximum duration, in the same form as *min_duration*.
            text: A part of the command or of the note. ASCII letters match regardless of case.
            sort: ``"id"`` (newest first), ``"ended"``, ``"duration"``, ``"peak"`` or ``"user"``.
            reverse: Reverse the order. Unknown values come last in both orders.
            limit: The largest number of jobs to return.
            before_id: Only jobs with a smaller id.
            after_id: Only jobs after this one in the requested order. For the next page, pass the last job's id.

        Raises:
            BadRequest: an argument is invalid.
            JobNotFound: the order needs the job *after_id*, and the history does not contain it.

        """
        asked = {name: value for name, value in locals().items() if name != "self"}
        return self._connection.database.history(self._query(asked))

    def folded(self, **asked: Any) -> list[FoldedRow]:
        """Return the jobs of :meth:`search`, with the members of each array folded into one row.

        The arguments are those of :meth:`search` without *array*. The only order is that of the ids. An array is a row
        if one of its members matches, or the array itself.

        Raises:
            BadRequest: an argument is invalid, or *sort* is another order.

        """
        defaults = History.search.__kwdefaults__ or {}
        if not {*asked} <= {*defaults} - {"array"}:
            raise TypeError(f"folded() takes the arguments of search() without array, not {sorted(asked)}")
        query = self._query({**defaults, **asked})
        if query.sort is not history_query.Sort.ID:
            raise BadRequest("members are folded in the order of ids only: leave out sort, or search for the members")
        return self._connection.database.folded(query)

    def params(self, records: Sequence[Record]) -> dict[int, dict[str, str]]:
        """Return the values of the sweep of each of *records* that is a member of one, by the id of the job."""
        return sweep_values(records, self._array)

    def _query(self, asked: Mapping[str, Any]) -> HistoryQuery:
        return replace(_query(asked), owner=self._owner)

    def _array(self, array_id: int) -> Array | None:
        record = self._connection.database.get(array_id)
        return None if record is None else record.job.spec.array

    def has(self, job: int) -> bool:
        """Return whether the history has the job with this id."""
        return self._connection.database.get(job_ref.job_id(job)) is not None

    def never_began(self, array: int) -> Indexes:
        """Return the members of an array that were cancelled before any worker claimed them.

        The history has no rows for these members.

        Raises:
            BadRequest: *array* is not an id.

        """
        return self._connection.database.never_began(job_ref.job_id(array))

    def stats(
        self,
        by: By | str = "user",
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        user: str | None = None,
    ) -> Statistics:
        """Return statistics of the runs in a period, grouped by user, device, host or local day.

        Args:
            by: The grouping: ``"user"``, ``"device"``, ``"host"`` or ``"day"``.
            since: The start of the period. By default thirty days before its end.
            until: The end of the period. By default, and at most, now.
            user: Only this user's jobs.

        Raises:
            BadRequest: an argument is invalid, or a grouping by day has MAX_STEPS days or more.

        """
        from gpuqueue.model.statistics import MAX_STEPS, By  # noqa: PLC0415 - lazy import for startup time

        start, end = self._period(since, until)
        if validation.word("by", by, By) is By.DAY and (end - start).days >= MAX_STEPS:
            raise BadRequest(f"a table by day takes at most {MAX_STEPS} days: choose a shorter period")
        name = validation.text_or_none("user", user)
        found = self._connection.database.statistics(
            by=validation.word("by", by, By), since=start, until=end, user=name
        )
        return found if name else replace(found, reserved_idle_device_s=self._reserved_idle_device_s())

    def _reserved_idle_device_s(self) -> float | None:
        try:
            return self._connection.queue.maintenance.reserved_idle_device_s()
        except Unreachable:
            return None

    def course(
        self,
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        steps: int = 30,
        user: str | None = None,
    ) -> Course:
        """Return statistics of a period as a time series of *steps* equal intervals.

        The arguments *since*, *until* and *user* are those of :meth:`stats`.

        Raises:
            BadRequest: an argument is invalid.

        """
        from gpuqueue.model.statistics import MAX_STEPS  # noqa: PLC0415 - lazy import for startup time

        start, end = self._period(since, until)
        if not 1 <= validation.count("steps", steps) <= MAX_STEPS:
            raise BadRequest(f"steps must be from 1 to {MAX_STEPS}, not {steps}")
        return self._connection.database.course(
            since=start, until=end, count=steps, user=validation.text_or_none("user", user)
        )

    def learning(
        self,
        *,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        user: str | None = None,
    ) -> LearningReport:
        """Return how learned memory would have done over the jobs that ended in a period, beside simple rules.

        The arguments are those of :meth:`stats`. At most the newest 2000 jobs of the period are read.

        Raises:
            BadRequest: an argument is invalid.

        """
        start, end = self._period(since, until)
        return self._connection.database.learning(
            since=start,
            until=end,
            user=validation.text_or_none("user", user),
            headroom_bytes=self._connection.settings.headroom_bytes,
        )

    def _period(self, since: str | datetime | None, until: str | datetime | None) -> tuple[datetime, datetime]:
        now = datetime.now(timezone.utc)
        given = times.moment("until", until)
        end = now if given is None else min(given, now)
        begun = times.moment("since", since)
        earliest = datetime.min.replace(tzinfo=timezone.utc) + STATS_PERIOD
        start = begun or max(end, earliest) - STATS_PERIOD
        if end <= start or end < earliest:
            raise BadRequest("nothing lies between since and until, or it is all in the future")
        return start, end


def _query(asked: Mapping[str, Any]) -> HistoryQuery:
    """Return the query that the arguments of :meth:`History.search` describe."""
    optional = {name: asked[name] for name in ("array", "before_id", "after_id") if asked[name] is not None}
    ids = {name: job_ref.job_id(value) for name, value in optional.items()}
    exit_code = asked["exit_code"]
    query = history_query.HistoryQuery(
        user=validation.text_or_none("user", asked["user"]),
        name=validation.text_or_none("name", asked["name"]),
        device=validation.text_or_none("device", asked["device"]),
        model=validation.text_or_none("model", asked["model"]),
        host=validation.text_or_none("host", asked["host"]),
        since=times.moment("since", asked["since"]),
        until=times.moment("until", asked["until"]),
        states=validation.words_of("states", asked["states"], JobState),
        endings=validation.words_of("endings", asked["endings"], runs.EndingKind),
        exit_code=None if exit_code is None else validation.count("exit_code", exit_code),
        array_id=ids.get("array"),
        tags=tags_of(validation.words("tags", asked["tags"])),
        min_peak_bytes=validation.size_or_none("min_peak", asked["min_peak"]),
        min_duration_s=validation.duration_or_none("min_duration", asked["min_duration"]),
        max_duration_s=validation.duration_or_none("max_duration", asked["max_duration"]),
        text=validation.text_or_none("text", asked["text"], most=history_query.MAX_TEXT),
        sort=validation.word("sort", asked["sort"], history_query.Sort),
        reverse=bool(asked["reverse"]),
        limit=validation.count("limit", asked["limit"]),
        before_id=ids.get("before_id"),
        after_id=ids.get("after_id"),
    )
    times.ordered(query.since, query.until)
    shortest, longest = query.min_duration_s, query.max_duration_s
    if shortest is not None and longest is not None and longest < shortest:
        raise BadRequest("--max-duration must not be less than --min-duration: no run is both")
    return query
