"""The ``note`` command."""

from __future__ import annotations

import sys

import click

from gpuqueue.cli.commands.tag import job_id_argument
from gpuqueue.cli.options.job_selection import on_each
from gpuqueue.client import Client
from gpuqueue.client.selection import Which


@click.command()
@job_id_argument
@click.argument("text", metavar="TEXT")
def note(job_id: str, text: str) -> None:
    """Write a note on a job in any state. A new note replaces the old one.

    An empty text removes the note. ID may be a range of ids (12-19), an array (17) or a member of one (17_2).

    \b
    Examples:
      gpuqueue note 12 "diverges after epoch 3: learning rate too high"
      gpuqueue note 12 ""
    """  # noqa: D301 - \b is click's mark for lines to keep

    def act(client: Client, name: str) -> str:
        client.jobs.note(name, text)
        return f"job {name}: {'noted' if text else 'nothing noted'}"

    with Client() as client:
        sys.exit(on_each(client, [job_id], act, which=Which.ANY))
