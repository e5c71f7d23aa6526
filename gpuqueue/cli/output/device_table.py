"""The table of devices for ``gpus``, ``status`` and ``up``, fitted to the terminal. Pure.

For a pipe, nothing is omitted or cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from gpuqueue.cli.output import render, terminal_width
from gpuqueue.cli.output.drains import condition
from gpuqueue.cli.output.render import table_of
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.text.sanitize import cells, plain
from gpuqueue.text.units import format_bytes
from gpuqueue.words import values


class Row(NamedTuple):
    """One line: a device, the interval of its worker's heartbeats in seconds, and the known labels of its jobs."""

    status: DeviceStatus
    heartbeat_s: float
    called: Mapping[int, str] = {}

    @property
    def jobs(self) -> list[str]:
        """Return the labels of the jobs on the device."""
        return [self.called.get(job_id, str(job_id)) for job_id in self.status.jobs]


#: One column of the table.
Column: TypeAlias = terminal_width.Column[Row]


def device_table(
    found: Sequence[DeviceStatus], heartbeat_s: float, width: int | None = None, called: Mapping[int, str] | None = None
) -> str:
    """Return the devices as a table *width* columns wide; None: for a pipe. *called* maps job ids to labels."""
    return table_of(COLUMNS, [Row(each, heartbeat_s, called or {}) for each in found], width)


def few(names: Sequence[str], width: int, between: str = " ") -> str:
    """Return the *names* of jobs in *width* columns.

    The result is the first form that fits: all names, members of arrays as ranges, the first names and the number of
    the others, or only the number.
    """
    if not names:
        return "-"
    ranges = _ranges(names)
    for words in (between.join(names), between.join(ranges)):
        if cells(words) <= width:
            return words
    for count in range(len(names) - 1, 0, -1):
        words = f"{between.join(names[:count])} +{len(names) - count}"
        if cells(words) <= width:
            return words
    return f"{len(names)}"


def _ranges(names: Sequence[str]) -> list[str]:
    """Return *names* with consecutive members of an array as a range: ``72_0-6`` for seven of them."""
    found: list[tuple[str, int, int]] = []
    for name in names:
        array, _, index = name.rpartition("_")
        place = int(index)
        if found and array and found[-1][0] == array and found[-1][2] == place - 1:
            found[-1] = (array, found[-1][1], place)
        else:
            found.append((array, place, place))
    return [
        f"{array}_{first}-{last}" if first != last else f"{array}_{first}" if array else f"{first}"
        for array, first, last in found
    ]


NAME = terminal_width.Column[Row](
    head="NAME", cell=lambda row, width: render.model_of(row.status.device, min(width, 32)), least=11, keep=4, narrows=1
)
FREE = terminal_width.Column[Row](head="FREE", cell=lambda row, _: format_bytes(row.status.free_bytes), right=True)
#: Narrowed first, because a line below the table has what is cut.
STATE = terminal_width.Column[Row](
    head="STATE", cell=lambda row, _: condition(row.status, row.heartbeat_s, row.called), least=28, narrows=0
)
#: The columns from left to right.
COLUMNS: tuple[Column, ...] = (
    terminal_width.Column(head="HOST", cell=lambda row, _: plain(row.status.host), least=8, narrows=2),
    terminal_width.Column(head="DEVICE", cell=lambda row, _: values.device_label(row.status.device), right=True),
    NAME,
    terminal_width.Column(
        head="TOTAL", cell=lambda row, _: format_bytes(row.status.device.total_bytes), right=True, keep=2
    ),
    terminal_width.Column(
        head="ALLOCATED", cell=lambda row, _: format_bytes(row.status.allocated_bytes), right=True, keep=5
    ),
    terminal_width.Column(
        head="EXTERNAL", cell=lambda row, _: format_bytes(row.status.external_bytes), right=True, keep=3
    ),
    FREE,
    terminal_width.Column(
        head="SLOTS", cell=lambda row, _: f"{len(row.status.jobs)}/{row.status.slots}", right=True, keep=1
    ),
    terminal_width.Column(head="JOBS", cell=lambda row, width: few(row.jobs, width), least=8, narrows=3),
    STATE,
)
