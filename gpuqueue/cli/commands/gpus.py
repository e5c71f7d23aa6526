"""The ``gpus`` command."""

from __future__ import annotations

import click

from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.options.own_queue import how_to_start
from gpuqueue.cli.output.devices import device_rows, external_process_lines
from gpuqueue.cli.output.render import hanging, terminal_width
from gpuqueue.client import Client


@click.command()
@json_option
def gpus(*, as_json: bool) -> None:
    """List the devices with allocated memory, memory of external processes, free memory and reservations.

    Below are the Python environments of each host, for submit --environment.

    \b
    Examples:
      gpuqueue gpus
      gpuqueue gpus --json | jq '.[] | {uuid: .device.uuid, free_bytes}'
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        found = client.devices.list()
        rows = device_rows(found, client.settings, client.jobs.labels) if found and not as_json else ""
    if as_json:
        print_json(found)
    elif found:
        click.echo(rows)
        for line in external_process_lines(found):
            click.echo("\n".join(hanging(line, terminal_width())))
    else:
        click.echo(f"no worker has announced a device: {how_to_start(client.settings)}", err=True)
