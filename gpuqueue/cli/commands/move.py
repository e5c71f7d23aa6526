"""The ``move`` command."""

from __future__ import annotations

import sys

import click

from gpuqueue.cli.options.array_part import job_line
from gpuqueue.cli.options.job_selection import ids, on_each
from gpuqueue.client.changing import Changing
from gpuqueue.errors import BadRequest


@click.command()
@ids("queued", "held")
@click.option("--front", is_flag=True, help="Before all your other jobs that wait.")
@click.option("--undo", is_flag=True, help="Back to the place by arrival.")
def move(ids: tuple[str, ...], *, front: bool, undo: bool) -> None:
    """Let waiting jobs go before all others of your own, in the order in which you name them.

    Among users it changes nothing: who has used less goes first, as ever; and a job stays on its level.

    \b
    Examples:
      gpuqueue move 17 --front
      gpuqueue move 19 17-18 --front
      gpuqueue move 17 --undo
    """  # noqa: D301 - \b is click's mark for lines to keep
    if not ids or front == undo:
        raise BadRequest("say which jobs, and where to: gpuqueue move 17 --front, or --undo")
    with Changing() as client:

        def act(client: Changing, name: str) -> str:
            place = "before all others of its user" if front else "back at its place by arrival"
            return f"{job_line(name, client.move(name, front=front))}, {place}"

        sys.exit(on_each(client, ids, act, last_first=True))
