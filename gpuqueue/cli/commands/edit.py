"""The ``edit`` command."""

from __future__ import annotations

from typing import Any

import click

from gpuqueue.cli.completion.candidates import live_ids, pools
from gpuqueue.cli.options import dependencies, placement
from gpuqueue.cli.output.arrays import JobNameType
from gpuqueue.client import Client
from gpuqueue.model.job import Level
from gpuqueue.text.sanitize import plain

#: Parameter in Python -> its name on the command line, where they differ.
_CALLED = {"time_limit": "time", "preference": "placement", "level": "priority"}


@click.command()
@click.argument("job_id", metavar="ID", type=JobNameType(), shell_complete=live_ids("queued", "held"))
@click.option("-m", "--mem", metavar="SIZE", help="Memory on each device.")
@click.option("-g", "--gpus", metavar="N", type=int, help="Number of devices, all on one host.")
@placement.new_device
@placement.new_device_type
@placement.alone
@placement.shared
@placement.spread
@placement.pack
@placement.no_preference
@click.option("-t", "--time", "time_limit", metavar="TIME", help="Time limit; none removes it.")
@click.option("--signal", metavar="SIG@TIME", help="Signal sent this long before the time limit; none removes it.")
@click.option("-n", "--name", help="Name of the job.")
@click.option(
    "-p",
    "--priority",
    "level",
    type=click.Choice([str(level) for level in Level]),
    help="Jobs of higher priority start first.",
)
@click.option("--pool", help="Only devices of this pool; '' for any pool.", shell_complete=pools)
@dependencies.new_after
@dependencies.new_begin
@dependencies.new_retries
@dependencies.new_retry_on
@click.option("--at-once", metavar="N", help="Concurrent members of an array, even if it has started; none: no limit.")
def edit(job_id: str, **changes: Any) -> None:
    """Change the request of a waiting job. If one change is refused, nothing is changed.

    The job keeps its place. Omitted options change nothing.

    \b
    Examples:
      gpuqueue edit 12 --mem 8G --time 4h
      gpuqueue edit 12 --after none --begin now
      gpuqueue edit 17 --at-once 4
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        given = {name: value for name, value in changes.items() if value not in (None, ())}
        job = client.jobs.edit(job_id, **given)
        click.echo(f"job {job.id}: {job.state}, {', '.join(_said(*each) for each in given.items())}")
        placement.warn_if_alone(client, job)


def _said(name: str, value: object) -> str:
    """Return a change in the words of its option: ``mem 8G``, ``exclusive``."""
    words = _CALLED.get(name, name.replace("_", " "))
    if isinstance(value, bool):
        return words if value else "shared"
    text = ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
    return f"{words} {plain(text)}".rstrip() if text else f"any {words}"
