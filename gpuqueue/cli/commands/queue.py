"""The ``queue`` command."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpuqueue.cli.completion.candidates import pools, tags, users
from gpuqueue.cli.options.count import Count
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.options.once import Once
from gpuqueue.cli.output.render import terminal_width
from gpuqueue.client import Client
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import JobState

if TYPE_CHECKING:
    from gpuqueue.cli.output import queue_table
else:
    queue_table = later("gpuqueue.cli.output.queue_table")


@click.command(cls=Once)
@click.option("-u", "--user", metavar="NAME", help="Only this user's jobs.", shell_complete=users)
@click.option("-n", "--name", metavar="TEXT", help="Only jobs of this name or pattern: train, 'train*'.")
@click.option(
    "-s",
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    type=click.Choice([state.value for state in JobState if not state.is_end]),
    help="Only jobs, and members of arrays, in this state: queued, held, starting, running, cancelling. Repeatable.",
)
@click.option(
    "--tag", "tags", multiple=True, metavar="WORD", help="Only jobs with this tag. Repeatable.", shell_complete=tags
)
@click.option("--pool", metavar="NAME", help="Only jobs that ask for this pool.", shell_complete=pools)
@click.option(
    "-l", "--limit", type=Count(), default=1000, show_default=True, help="Maximum number of jobs, oldest first."
)
@json_option
def queue(limit: int, *, as_json: bool, **filters: Any) -> None:
    """List the jobs that have not ended, in the order of their ids.

    Progress is that of the whole job, read from its output; without a service, only on its host. A narrow terminal
    omits columns; a pipe gets all columns.

    \b
    Examples:
      gpuqueue queue
      gpuqueue queue --user ada --state running
      gpuqueue queue --json | jq '.jobs[] | select(.state == "queued") | .id'
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        listing = client.jobs.listing(limit=limit + 1, **filters)
        more = len(listing.jobs) > limit
        if more:
            listing = replace(listing, jobs=listing.jobs[:limit], after=listing.jobs[limit - 1].id)
        progress = client.logs.progress(listing.jobs, listing.logs)
    if as_json:
        print_json(listing, progress=progress)
    elif listing.jobs:
        click.echo(queue_table.queue_table(listing, progress, terminal_width(), states=filters["states"]))
    else:
        click.echo(f"no job {'of these ' if any(filters.values()) else ''}waits or runs", err=True)
    if more:
        click.echo(f"and more: add --limit {10 * limit}", err=True)
