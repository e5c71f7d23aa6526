"""The ``move`` command."""

from __future__ import annotations

import sys

import click

from gpuqueue.cli.options.array_part import job_line
from gpuqueue.cli.options.job_selection import ids, on_each
from gpuqueue.client import Client
from gpuqueue.errors import BadRequest


@click.command()
@ids("queued", "held")
@click.option("--front", is_flag=True, help="Move before all your other waiting jobs.")
@click.option("--undo", is_flag=True, help="Move back to the place by arrival.")
def move(ids: tuple[str, ...], *, front: bool, undo: bool) -> None:
    """Move waiting jobs before all your other jobs, in the order in which you name them.

    The order between users and the priority of the job do not change.

    \b
    Examples:
      gpuqueue move 17 --front
      gpuqueue move 19 17-18 --front
      gpuqueue move 17 --undo
    """  # noqa: D301 - \b is click's mark for lines to keep
    if not ids or front == undo:
        raise BadRequest("name the jobs, and the direction: gpuqueue move 17 --front, or --undo")
    with Client() as client:

        def act(client: Client, name: str) -> str:
            place = "before all others of its user" if front else "back at its place by arrival"
            return f"{job_line(name, client.jobs.move(name, front=front))}, {place}"

        sys.exit(on_each(client, ids, act, last_first=True))
