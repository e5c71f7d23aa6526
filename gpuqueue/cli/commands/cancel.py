"""The ``cancel`` command."""

from __future__ import annotations

from typing import Any

import click

from gpuqueue.cli.options.array_part import change_line
from gpuqueue.cli.options.job_selection import Selection, act_on, chosen
from gpuqueue.cli.options.once import Once
from gpuqueue.client import Client


@click.command(cls=Once)
@chosen(with_state=True)
def cancel(**words: Any) -> None:
    """Cancel jobs (12), ranges of jobs (14-19), arrays (17), or members of arrays (17_2, 17_5-9).

    A waiting job ends at once. All processes of a running job get TERM, then KILL. With filter options the command
    lists the matching jobs and asks for confirmation.

    \b
    Examples:
      gpuqueue cancel 12 14-19
      gpuqueue cancel 17_5-9
      gpuqueue cancel --name 'sweep*' --state waiting
      gpuqueue cancel --all --yes
    """  # noqa: D301 - \b is click's mark for lines to keep
    act_on("cancel", Selection(**words), _cancel)


def _cancel(client: Client, name: str) -> str:
    change = client.jobs.cancel(name)
    return f"job {name} was cancelled already" if change.already else change_line("cancel", name, change)
