"""The ``hold`` command."""

from __future__ import annotations

from typing import Any

import click

from gpuqueue.cli.options.array_part import change_line
from gpuqueue.cli.options.job_selection import Selection, act_on, chosen
from gpuqueue.cli.options.once import Once
from gpuqueue.client import Client
from gpuqueue.client.selection import StateFilter


@click.command(cls=Once)
@chosen("queued")
def hold(**words: Any) -> None:
    """Keep waiting jobs, arrays or members of arrays from starting.

    \b
    Examples:
      gpuqueue hold 12 14-19
      gpuqueue hold --name 'sweep*'
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("hold", Selection(state=None, **words), _hold, state=StateFilter.QUEUED)


def _hold(client: Client, name: str) -> str:
    return change_line("hold", name, client.jobs.hold(name))
