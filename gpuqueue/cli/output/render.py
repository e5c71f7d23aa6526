"""Tables and colours on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpuqueue.model.device import Device
from gpuqueue.model.job import Job, JobState
from gpuqueue.text.sanitize import cells, plain, short

#: State -> colour on a terminal.
COLOURS = {
    JobState.RUNNING: "green",
    JobState.STARTING: "green",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.LOST: "red",
    JobState.HELD: "yellow",
    JobState.CANCELLING: "yellow",
    JobState.CANCELLED: "yellow",
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Return a table with aligned columns; *right* has the positions of the columns that are aligned right."""
    widths = [max(cells(click.unstyle(row[i])) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = []
        for i, cell in enumerate(row):
            space = " " * (widths[i] - cells(click.unstyle(cell)))
            padded.append(space + cell if i in right else cell + space)
        return "  ".join(padded).rstrip()

    return "\n".join(line(row) for row in (head, *rows))


def state(job: Job) -> str:
    """Return the job's state, in its colour."""
    return click.style(str(job.state), fg=COLOURS.get(job.state))


def place(where: str, width: int) -> str:
    """Return ``HOST:INDEXES`` in *width* columns: the host's name is cut, the indexes are not."""
    host, colon, indexes = where.rpartition(":")
    return f"{short(host, max(1, width - cells(indexes) - 1))}:{indexes}" if colon else short(where, width)


def model_of(device: Device, width: int) -> str:
    """Return the name of a device in *width* columns. That of a MIG instance keeps its profile: ``NVID… 1g.10gb``."""
    profile = plain(device.mig_profile or "")
    room = width - cells(profile) - 1
    if not profile or cells(plain(device.name)) <= width or room < 1:
        return short(device.name, width)
    card = device.name.rpartition(" MIG ")[0]
    return f"{short(card, room)} {profile}"
