"""The ``lost`` command."""

from __future__ import annotations

import click

from gpuqueue.cli.options.job_selection import confirmed
from gpuqueue.client import Client
from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import plain


@click.command()
@click.argument("host", metavar="HOST")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def lost(host: str, *, yes: bool) -> None:
    """Declare a silent host lost: its runs end as lost, and their jobs are queued again at once.

    Use it when the machine is off. A host that is only cut off from the store may still run these jobs, and another
    host would run them at the same time. Only an administrator may do this.

    \b
    Examples:
      gpuqueue lost nodeA
      gpuqueue lost nodeA --yes
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        if not yes:
            if all(device.host != host for device in client.devices.list()):
                raise BadRequest(f"no host {plain(host)} is known: gpuqueue gpus lists them")
            confirmed(f"declare {plain(host)} lost; its jobs run twice if that machine is not off")
        changed = client.devices.lost(host)
        called = client.jobs.labels(changed)
    for job_id, state in changed.items():
        click.echo(f"job {called.get(job_id, str(job_id))}: its run was lost, the job is {state}")
    if not changed:
        click.echo(f"{plain(host)} ran no job")
