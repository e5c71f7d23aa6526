"""The ``why`` command."""

from __future__ import annotations

import json

import click

from gpuqueue.cli.options.job_id import one_job_argument
from gpuqueue.cli.options.json_option import json_option
from gpuqueue.cli.output import live_run
from gpuqueue.cli.output.silent_hosts import silent_lines
from gpuqueue.cli.output.terminal_width import hanging, terminal_width
from gpuqueue.cli.output.why_json import why_to_plain
from gpuqueue.cli.output.why_text import why_text
from gpuqueue.client import Client


@click.command()
@one_job_argument("queued", "held")
@json_option
def why(job_id: str, *, as_json: bool) -> None:
    """Explain why a job waits: when it may start, what the nearest devices lack, and which jobs block it.

    --json lists all devices.

    \b
    Examples:
      gpuqueue why 12
      gpuqueue why 12 --json | jq .start
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        found = client.jobs.why(job_id)
        silent = [] if as_json else list(live_run.silent(client, found.job))
        silent += silent_lines(list(found.devices.values()), client.settings)
    click.echo(json.dumps(why_to_plain(found), indent=2) if as_json else why_text(found, terminal_width()))
    for line in [] if as_json else silent:
        click.echo("\n".join(hanging(line, terminal_width())))
