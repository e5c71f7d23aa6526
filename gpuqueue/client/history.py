"""The group ``client.history``: searches recorded jobs and computes statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from gpuqueue.client.connection import Connection
from gpuqueue.client.fields import from_fields
from gpuqueue.errors import BadRequest, Unreachable
from gpuqueue.lazy.imports import later
from gpuqueue.model import job_ref, times, validation

if TYPE_CHECKING:
    from gpuqueue.model import history_query
    from gpuqueue.model import run as runs
    from gpuqueue.model.array import Array, Indexes
    from gpuqueue.model.history_query import FoldedRow, HistoryQuery
    from gpuqueue.model.learning_report import LearningReport
    from gpuqueue.model.run import Record
    from gpuqueue.model.statistics import By, Course, Statistics
else:
    history_query = later("gpuqueue.model.history_query")
    runs = later("gpuqueue.model.run")

#: Default period of statistics.
STATS_PERIOD = timedelta(days=30)


class History:
    """The recorded jobs, with their runs. A job is recorded a moment after each of its changes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @from_fields(lambda: history_query.HistoryQuery.of)
    def search(self, query: HistoryQuery) -> list[Record]:
        """Return the first *limit* jobs that match all criteria, with their runs, in the order of *sort*.

        The arguments are those of ``HistoryQuery.of``, with its errors.

        Raises:
            JobNotFound: the order needs the job *after_id*, and the history does not contain it.

        """
        return self.records_of(query)

    def records_of(self, query: HistoryQuery) -> list[Record]:
        """Return the jobs of *query*, as :meth:`search` does."""
        return self._connection.database.history(query)

    @from_fields(lambda: history_query.HistoryQuery.of)
    def folded(self, query: HistoryQuery) -> list[FoldedRow]:
        """Return the jobs of :meth:`search`, with the members of each array folded into one row.

        The arguments are those of ``HistoryQuery.of`` without *array*. The only order is that of the ids. An array is a
        row if one of its members matches, or the array itself.

        Raises:
            BadRequest: an argument is invalid, or *sort* is another order.

        """
        return self.rows_of(query)

    def rows_of(self, query: HistoryQuery) -> list[FoldedRow]:
        """Return the rows of *query*, as :meth:`folded` does."""
        query.must_fold()
        return self._connection.database.folded(query)

    def params(self, records: Sequence[Record]) -> dict[int, dict[str, str]]:
        """Return the parameters of each of *records* that has some, by the id of the job.

        They are those that its last run reported, and the values of the sweep that it is a member of.
        """
        runs = {each.job.id: each.last_run for each in records}
        found = {job_id: dict(run.params) for job_id, run in runs.items() if run is not None and run.params}
        for job_id, swept in sweep_values(records, self._array).items():
            found[job_id] = {**found.get(job_id, {}), **swept}
        return found

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


def sweep_values(records: Sequence[Record], array_of: Callable[[int], Array | None]) -> dict[int, dict[str, str]]:
    """Return the values of each of *records* that is a member of a sweep, by job id.

    *array_of* finds an array by its id.
    """
    arrays: dict[int, Array | None] = {}
    found = {}
    for job in (record.job for record in records):
        if job.member is None:
            continue
        array_id = job.member.array_id
        if array_id not in arrays:
            arrays[array_id] = array_of(array_id)
        array = arrays[array_id]
        if array is not None and array.axes:
            values = array.values(job.member.index)
            found[job.id] = {axis.name: values[axis.name] for axis in array.axes}
    return found
