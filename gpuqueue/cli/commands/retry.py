"""The ``retry`` command."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpuqueue.cli.completion.candidates import ended_ids
from gpuqueue.cli.options import placement
from gpuqueue.cli.options.dependencies import report_found
from gpuqueue.cli.options.fields import field
from gpuqueue.cli.options.job_request import WithRest
from gpuqueue.cli.options.job_selection import on_each
from gpuqueue.client import Client
from gpuqueue.client.selection import Which
from gpuqueue.model.job import JobSpec


@click.command(cls=WithRest)
@click.argument("ids", metavar="ID…", nargs=-1, required=True, shell_complete=ended_ids)
@field("mem", "Memory on each device. Default: as before.")
@field("gpus", "Number of devices. Default: as before.")
@field("device", f"{placement.DEVICE} Default: as before.")
@field("time_limit", "Time limit; none removes it. Default: as before.")
@field("priority", "Priority. Default: as before.")
@click.option("-e", "--env", multiple=True, metavar="K=V", help="Change an environment variable. Repeatable.")
@click.pass_context
def retry(ctx: click.Context, /, ids: tuple[str, ...], **changes: Any) -> None:
    """Submit ended jobs again, as new jobs, and print their ids.

    The new job uses the environment and the directory of the first submission. Words after -- replace the arguments of
    its script. For an array (17) or a range of ids (12-19), only failed and lost jobs are submitted again. A job (12)
    or a member (17_2) is always submitted again. If one job cannot be submitted again, nothing is submitted.

    The new job waits for no other job and no time: --after, --begin and --hold do not apply again.

    \b
    Examples:
      gpuqueue retry 12
      gpuqueue retry 12 --mem 12G --time 8h
      gpuqueue retry 12 -- --epochs 1
      gpuqueue wait $(gpuqueue retry 17)
    """  # noqa: D301 - \b is click's mark for lines to keep
    given = {name: value for name, value in changes.items() if value not in (None, ())}
    specs: dict[str, JobSpec] = {}

    def judge(client: Client, name: str) -> None:
        specs[name] = client.jobs.spec_again(name, args=ctx.obj, **given)

    def submit(client: Client, name: str) -> str:
        return str(client.jobs.submit_spec(specs[name], found=report_found).id)

    with Client() as client:
        code = on_each(client, ids, judge, which=Which.FAILED)
        sys.exit(code or on_each(client, list(specs), submit))
