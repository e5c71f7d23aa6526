"""The members of an array as rows: filtered, sorted and cut. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from datetime import datetime
from itertools import islice
from typing import Any

from gpuqueue.errors import Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.array import Array, Indexes, Member, Tally
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.page import MemberRow, MemberSort, MemberTable, QueueRow, RecordedMember

#: Most members of an array that are filtered, and sorted by anything but the index.
MOST_SORTED = 10_000
#: Most metrics of one table.
MAX_METRICS = 8
_NO_TALLY = Tally(left=Indexes(), held=Indexes(), ended={})
_STATES = (*(each for each in JobState if not each.is_end), *(each for each in JobState if each.is_end))
_KEYS: Mapping[MemberSort, Callable[[MemberRow], Any]] = {
    MemberSort.INDEX: lambda row: row.index,
    MemberSort.STATE: lambda row: None if row.state is None else _STATES.index(row.state),
    MemberSort.DURATION: lambda row: row.duration_s,
    MemberSort.PEAK: lambda row: row.peak_bytes,
}

#: Reads the last values of the metrics of members by their indexes, or of one metric only.
Measured = Callable[[Collection[int], str | None], Mapping[int, Mapping[str, float]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberQuery:
    """The filter, the order and the part of the members that a caller asks for.

    ``axis`` names a value, for the order VALUE, or a metric, for the order METRIC.
    """

    states: tuple[JobState, ...] = ()
    sort: MemberSort = MemberSort.INDEX
    axis: str | None = None
    reverse: bool = False
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Members:
    """What is known of the members of one array: the array, those that run, and how to read those of the history.

    ``recorded`` reads the members with an index between two, both included. ``measured`` reads their metrics; None for
    a caller who may not see them. ``reported`` has what the running ones have reported so far.
    """

    job: Job
    live: Mapping[int, QueueRow]
    recorded: Callable[[int, int], Mapping[int, RecordedMember]]
    measured: Measured | None = None
    reported: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    def table(self, query: MemberQuery, at: datetime) -> MemberTable:
        """Return the part of the members that *query* asks for.

        Raises:
            Refused: the array is too large to be sorted or filtered so, or has no such value.

        """
        array = self.job.spec.array
        if array is None:
            raise Refused(f"job {self.job.label} is no array: it has no members")
        axes = tuple(each.name for each in array.axes)
        if query.sort is MemberSort.VALUE and query.axis not in axes:
            raise Refused(f"the sweep of array {self.job.label} has no value of that name: {', '.join(axes) or 'none'}")
        total = len(array)
        if query.sort is MemberSort.INDEX and not query.states:
            rows = self._rows(array, _window(array.indexes, query))
        elif total > MOST_SORTED:
            raise Refused(f"an array of more than {MOST_SORTED} members is shown by index only, without a filter")
        else:
            rows = self._rows(array, array.indexes)
            rows = [each for each in rows if not query.states or each.state in query.states]
            total = len(rows)
            rows = self._ordered(rows, query, axes)[query.offset : query.offset + query.limit]
        values = self._metrics([each.index for each in rows])
        metrics = tuple(sorted({name for each in values.values() for name in each})[:MAX_METRICS])
        return MemberTable(
            at=at,
            total=total,
            offset=query.offset,
            rows=tuple(replace(each, metrics=_some(values.get(each.index, {}), metrics)) for each in rows),
            axes=axes,
            counts=self._counts(array),
            metrics=metrics,
            sortable=len(array) <= MOST_SORTED,
        )

    def _metrics(self, indexes: Collection[int], name: str | None = None) -> Mapping[int, Mapping[str, float]]:
        if self.measured is None or not indexes:
            return {}
        reported = {each: self.reported[each] for each in indexes if self.reported.get(each)}
        return {**self.measured(indexes, name), **reported}

    def _counts(self, array: Array) -> dict[str, int]:
        """Return the number of members by state. Those whose end is not recorded yet have none."""
        tally = self.job.tally or _NO_TALLY
        waiting = {str(JobState.QUEUED): len(tally.left), str(JobState.HELD): len(tally.held)}
        found = Counter({**waiting, **tally.ended}) + Counter(str(each.state) for each in self.live.values())
        if self.job.tally is not None and self.job.state.is_end and found.total() < len(array):
            found[str(JobState.CANCELLED)] += len(array) - found.total()
        return {str(each): found[str(each)] for each in _STATES if found[str(each)]}

    def _ordered(self, rows: list[MemberRow], query: MemberQuery, axes: tuple[str, ...]) -> list[MemberRow]:
        """Return *rows* in the order of *query*; those with an unknown value are last in both directions."""
        if query.sort is MemberSort.METRIC and query.axis is not None:
            name, values = query.axis, self._metrics([each.index for each in rows], query.axis)
            keys: dict[int, Any] = {each.index: values.get(each.index, {}).get(name) for each in rows}
        else:
            key = _value_of(rows, axes.index(query.axis or "")) if query.sort is MemberSort.VALUE else _KEYS[query.sort]
            keys = {each.index: key(each) for each in rows}
        known = [each for each in rows if keys[each.index] is not None]
        known.sort(key=lambda row: keys[row.index], reverse=query.reverse)
        return [*known, *(each for each in rows if keys[each.index] is None)]

    def _rows(self, array: Array, indexes: Iterable[int]) -> list[MemberRow]:
        wanted = list(indexes)
        if not wanted:
            return []
        recorded = self.recorded(min(wanted), max(wanted))
        tally = self.job.tally or _NO_TALLY
        left, held = _among(tally.left, wanted), _among(tally.held, wanted)
        found = []
        for each in wanted:
            values = array.values(each)
            shown = tuple(values[axis.name] for axis in array.axes)
            row, known = self.live.get(each), recorded.get(each)
            state = JobState.QUEUED if each in left else JobState.HELD if each in held else self._gone()
            found.append(_row(Member(self.job.id, each), shown, row, known, state))
        return found

    def _gone(self) -> JobState | None:
        """Return the state of a member that neither waits nor has a row: cancelled, or its end is not recorded yet."""
        tally = self.job.tally
        is_cancelled = self.job.state.is_end or (tally is not None and tally.ended.get(str(JobState.CANCELLED), 0))
        return JobState.CANCELLED if is_cancelled else None


def _among(indexes: Indexes, wanted: list[int]) -> Collection[int]:
    """Return those of *wanted* that are among *indexes*. The indexes of a large array are not listed one by one."""
    least, most = min(wanted), max(wanted)
    return {
        each
        for some in indexes.ranges
        if some[-1] >= least and some[0] <= most
        for each in some
        if least <= each <= most
    }


def _window(indexes: Indexes, query: MemberQuery) -> list[int]:
    total = len(indexes)
    if not query.reverse:
        return list(islice(indexes, query.offset, query.offset + query.limit))
    end = max(0, total - query.offset)
    return list(islice(indexes, max(0, end - query.limit), end))[::-1]


def _row(
    member: Member, values: tuple[str, ...], row: QueueRow | None, known: RecordedMember | None, state: JobState | None
) -> MemberRow:
    if row is not None:
        return MemberRow(
            id=member.id,
            index=member.index,
            state=row.state,
            values=values,
            host=row.host,
            where=row.where,
            started_at=row.started_at,
            used_bytes=row.used_bytes,
        )
    if known is not None:
        return MemberRow(
            id=member.id,
            index=member.index,
            state=known.state,
            values=values,
            host=known.host,
            started_at=known.started_at,
            duration_s=known.duration_s,
            peak_bytes=known.peak_bytes,
            exit_code=known.exit_code,
            ending=known.ending,
        )
    return MemberRow(id=member.id, index=member.index, state=state, values=values)


def _some(values: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    return {each: values[each] for each in names if each in values}


def _value_of(rows: Iterable[MemberRow], place: int) -> Callable[[MemberRow], Any]:
    """Return the key of one value of the sweep: a number if all of them are numbers."""
    try:
        numbers = {each.values[place]: float(each.values[place]) for each in rows}
    except ValueError:
        return lambda row: row.values[place]
    return lambda row: numbers[row.values[place]]
