"""The ``tag`` command."""

from __future__ import annotations

import sys

import click

from gpuqueue.cli.completion.candidates import live_ids
from gpuqueue.cli.options.job_selection import on_each
from gpuqueue.client import Client
from gpuqueue.client.selection import Which

job_id_argument = click.argument("job_id", metavar="ID", shell_complete=live_ids())


@click.command()
@job_id_argument
@click.argument("words", metavar="WORD…", nargs=-1, required=True)
@click.option("-r", "--remove", is_flag=True, help="Remove the tags.")
def tag(job_id: str, words: tuple[str, ...], *, remove: bool) -> None:
    """Add tags to a job in any state. gpuqueue history --tag WORD finds it.

    ID may be a range of ids (12-19), an array (17) or a member of one (17_2).

    \b
    Examples:
      gpuqueue tag 12 baseline paper
      gpuqueue tag 12-19 ablation
      gpuqueue tag 12 paper --remove
    """  # noqa: D301 - \b is click's mark for lines to keep

    def act(client: Client, name: str) -> str:
        before = client.jobs.get(name).tags
        client.jobs.tag(name, *words, remove=remove)
        return f"job {name}: {_changed(words, before, remove=remove)}"

    with Client() as client:
        sys.exit(on_each(client, [job_id], act, which=Which.ANY))


def _changed(words: tuple[str, ...], before: tuple[str, ...], *, remove: bool) -> str:
    """Return in words which tags changed and which did not; *before* are the job's earlier tags."""
    new = [word for word in words if (word in before) is remove]
    old = [word for word in words if word not in new]
    reported = [f"{'no longer tagged' if remove else 'tagged'} {' '.join(new)}"] if new else []
    return ", ".join([*reported, *([f"{'never' if remove else 'already'} tagged {' '.join(old)}"] if old else [])])
