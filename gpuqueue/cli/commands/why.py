"""The ``why`` command."""

from __future__ import annotations

from dataclasses import replace

import click

from gpuqueue.cli.options.job_id import one_job_argument
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output import job_story
from gpuqueue.cli.output.render import hanging, terminal_width
from gpuqueue.cli.output.silent_hosts import silent_lines
from gpuqueue.cli.output.why_text import why_text
from gpuqueue.client import Client
from gpuqueue.words.why.sentences import sentences


@click.command()
@one_job_argument("queued", "held")
@json_option
def why(job_id: str, *, as_json: bool) -> None:
    """Explain why a job waits: when it may start, what the nearest devices lack, and which jobs block it.

    --json lists all devices.

    \b
    Examples:
      gpuqueue why 12
      gpuqueue why 12 --json | jq .explanation.start
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        found = client.jobs.why(job_id)
        if as_json:
            print_json(replace(found, sentences=sentences(found)))
            return
        silent = [
            *job_story.silent_host_lines(client, found.job),
            *silent_lines(list(found.devices.values()), client.settings),
        ]
    click.echo(why_text(found, terminal_width()))
    for line in silent:
        click.echo("\n".join(hanging(line, terminal_width())))
