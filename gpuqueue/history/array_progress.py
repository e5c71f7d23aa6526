"""How far arrays have come, from the rows that the book has of them. Pure."""

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
    """Return how far each array among the jobs *rows* has come, by its id. What makes no sense is left out."""
    arrays = {row["id"]: row for row in rows if row["array_left"] is not None}
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    if arrays:
        for array_id, state, times in source.standing(list(arrays)):
            counts[array_id][state] = times
    found = {}
    for array_id, row in arrays.items():
        try:
            found[array_id] = _tally(row, counts[array_id])
        except (Unreadable, BadRequest) as error:
            log = logging.getLogger(__name__)
            log.warning("how far array %s has come cannot be told: %s", array_id, error)
    return found


def _tally(row: Row, counts: Mapping[str, int]) -> Tally:
    """Return how far an array has come. A member that was cancelled before any device took it has no row of its own."""
    left, held = waiting(row["state"], row["array_left"], row["array_held"])
    array = decode_spec(row["spec"]).array
    never_began = max(0, (len(array) if array else 0) - sum(counts.values()) - len(left) - len(held))
    ended = {state.value: counts.get(state.value, 0) for state in JobState if state.is_end}
    ended[JobState.CANCELLED.value] += never_began
    return Tally(left=left, held=held, ended=ended)


def waiting(state: str, left: str, held: str | None) -> tuple[Indexes, Indexes]:
    """Return which members of an array wait, and which are held: of one that has ended none, whatever is kept."""
    return (Indexes(), Indexes()) if JobState(state).is_end else (Indexes.parse(left), Indexes.parse(held or ""))
