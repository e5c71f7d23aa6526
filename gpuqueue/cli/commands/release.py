"""The ``release`` command."""

from __future__ import annotations

from typing import Any

import click

from gpuqueue.cli.options.array_part import change_line
from gpuqueue.cli.options.job_selection import Selection, act_on, chosen
from gpuqueue.cli.options.once import Once
from gpuqueue.client import Client
from gpuqueue.client.selection import StateFilter


@click.command(cls=Once)
@chosen("held")
def release(**words: Any) -> None:
    """Let held jobs, arrays or members of arrays start, at their old place in the order.

    \b
    Examples:
      gpuqueue release 12 14-19
      gpuqueue release --all
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("release", Selection(state=None, **words), _release, state=StateFilter.HELD)


def _release(client: Client, name: str) -> str:
    change = client.jobs.release(name)
    return change_line("release", name, change) + (" (it was not held)" if change.already else "")
