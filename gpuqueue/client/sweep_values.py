"""The values of a sweep that its members ran with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuqueue.model.array import Array
    from gpuqueue.model.run import Record


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
