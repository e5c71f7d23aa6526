"""The members of an array as rows: sorted and cut. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from gpuqueue.errors import Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.array import Array, Indexes, Tally
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.page import MemberRow, MemberSort, MemberTable, QueueRow, RecordedMember

#: Most members of an array that are sorted by anything but the index.
MOST_SORTED = 10_000
_NO_TALLY = Tally(left=Indexes(), held=Indexes(), ended={})
_STATES = (*(each for each in JobState if not each.is_end), *(each for each in JobState if each.is_end))
_KEYS: Mapping[MemberSort, Callable[[MemberRow], Any]] = {
    MemberSort.STATE: lambda row: None if row.state is None else _STATES.index(row.state),
    MemberSort.DURATION: lambda row: row.duration_s,
    MemberSort.PEAK: lambda row: row.peak_bytes,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberQuery:
    """The order and the part of the members that a caller asks for. ``axis`` names a value, for the order VALUE."""

    sort: MemberSort = MemberSort.INDEX
    axis: str | None = None
    reverse: bool = False
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Members:
    """What is known of the members of one array: the array, those that run, and how to read those of the history.

    ``recorded`` reads the members with an index between two, both included.
    """

    job: Job
    live: Mapping[int, QueueRow]
    recorded: Callable[[int, int], Mapping[int, RecordedMember]]

    def table(self, query: MemberQuery, at: datetime) -> MemberTable:
        """Return the part of the members that *query* asks for.

        Raises:
            Refused: the array is too large to be sorted so, or has no such value.

        """
        array = self.job.spec.array
        if array is None:
            raise Refused(f"job {self.job.label} is no array: it has no members")
        axes = tuple(each.name for each in array.axes)
        if query.sort is MemberSort.VALUE and query.axis not in axes:
            raise Refused(f"the sweep of array {self.job.label} has no value of that name: {', '.join(axes) or 'none'}")
        if query.sort is MemberSort.INDEX:
            rows = self._rows(array, _window(array.indexes, query))
        elif len(array) > MOST_SORTED:
            raise Refused(f"an array of more than {MOST_SORTED} members is shown by index only")
        else:
            rows = _ordered(self._rows(array, array.indexes), query, axes)[query.offset : query.offset + query.limit]
        return MemberTable(
            at=at,
            total=len(array),
            offset=query.offset,
            rows=tuple(rows),
            axes=axes,
            sortable=len(array) <= MOST_SORTED,
        )

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
            found.append(_row(each, shown, row, known, state))
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
    index: int, values: tuple[str, ...], row: QueueRow | None, known: RecordedMember | None, state: JobState | None
) -> MemberRow:
    if row is not None:
        return MemberRow(
            index=index,
            state=row.state,
            values=values,
            host=row.host,
            started_at=row.started_at,
            used_bytes=row.used_bytes,
        )
    if known is not None:
        return MemberRow(
            index=index,
            state=known.state,
            values=values,
            host=known.host,
            started_at=known.started_at,
            duration_s=known.duration_s,
            peak_bytes=known.peak_bytes,
            exit_code=known.exit_code,
            ending=known.ending,
        )
    return MemberRow(index=index, state=state, values=values)


def _ordered(rows: list[MemberRow], query: MemberQuery, axes: tuple[str, ...]) -> list[MemberRow]:
    """Return *rows* in the order of *query*; those with an unknown value are last in both directions."""
    key = _value_of(rows, axes.index(query.axis)) if query.axis in axes and query.axis else _KEYS[query.sort]
    known = [each for each in rows if key(each) is not None]
    known.sort(key=key, reverse=query.reverse)
    return [*known, *(each for each in rows if key(each) is None)]


def _value_of(rows: Iterable[MemberRow], place: int) -> Callable[[MemberRow], Any]:
    """Return the key of one value of the sweep: a number if all of them are numbers."""
    try:
        numbers = {each.values[place]: float(each.values[place]) for each in rows}
    except ValueError:
        return lambda row: row.values[place]
    return lambda row: numbers[row.values[place]]
