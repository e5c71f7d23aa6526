"""``edit``."""

from __future__ import annotations

from typing import Any

import click

from gpuqueue import checks
from gpuqueue.cli import wait_options
from gpuqueue.cli.arrays import JobNameType
from gpuqueue.cli.completing import live_ids
from gpuqueue.client import Client
from gpuqueue.device import DeviceWish
from gpuqueue.job import Level


@click.command()
@click.argument("job_id", metavar="ID", type=JobNameType(), shell_complete=live_ids("queued", "held"))
@click.option("-m", "--mem", metavar="SIZE", help="Memory on each device.")
@click.option("-g", "--gpus", type=int, help="Devices, all on one host.")
@click.option("--device", type=click.Choice([str(wish) for wish in DeviceWish]), help="Wait for that kind.")
@click.option("-t", "--time", "time_limit", metavar="TIME", help="Time limit; none takes it back.")
@click.option("-n", "--name", help="What to call the job.")
@click.option("-p", "--priority", type=click.Choice([str(level) for level in Level]), help="Higher goes first.")
@click.option("--pool", help="Only devices of this pool; '' for any.")
@wait_options.after
@wait_options.begin
@wait_options.retries
@wait_options.retry_on
def edit(job_id: str, *, priority: str | None, after: tuple[str, ...], **changes: Any) -> None:
    """Change what a job asks for that waits: all of it, or nothing where one thing is refused. It keeps its place.

    \b
    Examples:
      gpuqueue edit 12 --mem 8G --time 4h
      gpuqueue edit 12 --after none --begin now
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        level = None if priority is None else Level[priority.upper()]
        job = client.edit(checks.whole_job(job_id), level=level, after=after or None, **changes)
    click.echo(f"job {job.id}: {job.state}")
