"""Computes the progress of arrays from their rows in the history database. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gpuqueue.codec import decode_spec
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Indexes, Tally
from gpuqueue.model.job import JobState

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    from gpuqueue.history.rows import Row, Rows
else:
    logging = later("logging")


def tally(source: Rows, rows: Sequence[Row]) -> dict[int, Tally]:
    """Return the progress of each array among the jobs *rows*, by array id.

    An array whose row cannot be read is logged and left out.
    """
    arrays = {row["id"]: row for row in rows if row["array_left"] is not None}
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    if arrays:
        for array_id, state, times in source.count_states(list(arrays)):
            counts[array_id][state] = times
    found = {}
    for array_id, row in arrays.items():
        try:
            found[array_id] = _tally(row, counts[array_id])
        except (Unreadable, BadRequest) as error:
            log = logging.getLogger(__name__)
            log.warning("the progress of array %s is unknown: %s", array_id, error)
    return found


def _tally(row: Row, counts: Mapping[str, int]) -> Tally:
    """Return the progress of one array.

    A member that is cancelled before a device takes it has no row. Members without a row count as cancelled.
    """
    left, held = waiting(row["state"], row["array_left"], row["array_held"])
    array = decode_spec(row["spec"]).array
    never_began = max(0, (len(array) if array else 0) - sum(counts.values()) - len(left) - len(held))
    ended = {state.value: counts.get(state.value, 0) for state in JobState if state.is_end}
    ended[JobState.CANCELLED.value] += never_began
    return Tally(left=left, held=held, ended=ended)


def waiting(state: str, left: str, held: str | None) -> tuple[Indexes, Indexes]:
    """Return the waiting and the held members of an array. Both are empty once the array has ended."""
    return (Indexes(), Indexes()) if JobState(state).is_end else (Indexes.parse(left), Indexes.parse(held or ""))
