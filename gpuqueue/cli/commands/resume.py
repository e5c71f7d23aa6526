"""The ``resume`` command."""

from __future__ import annotations

import sys

import click

from gpuqueue.cli.commands.drain import devices_argument
from gpuqueue.cli.output.drains import device_name
from gpuqueue.client import Client
from gpuqueue.errors import Refused


@click.command()
@devices_argument
@click.option("--all", "all_here", is_flag=True, help="All devices of this host.")
def resume(devices: tuple[str, ...], *, all_here: bool) -> None:
    """Let devices take jobs again that a user or repeated quick failures drained.

    DEVICE is an index on this host, HOST:INDEX, or a UUID or its first characters.

    \b
    Examples:
      gpuqueue resume 3
      gpuqueue resume --all
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        resumed = client.devices.resume(*devices, all_here=all_here)
    closed = [each for each in resumed if each.drains]
    for each in resumed:
        if each not in closed:
            click.echo(f"{device_name(each)}: takes jobs again")
    for each in closed:
        why = "its machine is going down; gpuqueue up ends that"
        click.echo(f"gpuqueue: {device_name(each)} still takes no new job: {why}", err=True)
    sys.exit(Refused.exit_code if closed else 0)
