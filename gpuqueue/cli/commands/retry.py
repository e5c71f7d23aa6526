"""The ``retry`` command."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpuqueue.cli.completion.candidates import ended_ids
from gpuqueue.cli.options.dependencies import report_found
from gpuqueue.cli.options.fields import field
from gpuqueue.cli.options.job_selection import on_each
from gpuqueue.client import Client
from gpuqueue.client.selection import Which


@click.command()
@click.argument("ids", metavar="ID…", nargs=-1, required=True, shell_complete=ended_ids)
@field("mem", "Memory on each device. Default: as before.")
@field("time_limit", "Time limit. Default: as before.")
@field("level", "Priority. Default: as before.")
def retry(ids: tuple[str, ...], **changes: Any) -> None:
    """Submit ended jobs again, as new jobs, and print their ids.

    The new job uses the environment and the directory of the first submission. For an array (17) or a range of ids
    (12-19), only failed and lost jobs are submitted again. A job (12) or a member (17_2) is always submitted again.

    \b
    Examples:
      gpuqueue retry 12
      gpuqueue retry 12 --mem 12G --time 8h
      gpuqueue wait $(gpuqueue retry 17)
    """  # noqa: D301 - \b is click's mark for lines to keep

    def again(client: Client, name: str) -> str:
        return str(client.jobs.retry(name, **changes, found=report_found).id)

    with Client() as client:
        sys.exit(on_each(client, ids, again, which=Which.FAILED))
