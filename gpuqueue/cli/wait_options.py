"""The options that say what a job waits for beside a device, and after which endings it runs again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gpuqueue.cli.completing import awaited, listed, one_of
from gpuqueue.command import say
from gpuqueue.job import Job
from gpuqueue.retries import DEFAULT_ON, RetryOn
from gpuqueue.wishes import NONE, TIMES
from gpuqueue.words import plain

Option = Callable[[Any], Any]

after = click.option(
    "--after",
    multiple=True,
    metavar="ID[:ok|any|fail]",
    help="Wait until that job has ended: well (ok, the default), in any way, or badly. Repeat it, or use commas.",
    shell_complete=listed(awaited),
)
begin = click.option("--begin", metavar="TIME", help=f"Not before: {TIMES}.")
retries = click.option("--retries", type=int, metavar="N", help="Run it again after a failure, at most N times.")
retry_on = click.option(
    "--retry-on",
    metavar="ENDINGS",
    help=f"After which endings: failed, signalled, out_of_memory, timed_out, refused, lost, any. "
    f"[default: {','.join(map(str, DEFAULT_ON))}]",
    shell_complete=listed(one_of(RetryOn)),
)

#: Those of submit.
WAIT_OPTIONS: list[Option] = [
    after,
    begin,
    click.option("--hold", is_flag=True, help="Queue it held: it waits for gpuqueue release."),
    click.option(
        "--dedupe", metavar="KEY", help="If a job of yours with this key waits or runs, print its id, queue nothing."
    ),
    retries,
    retry_on,
]


def tell_if_past(begin: str | None, job: Job) -> None:
    """Say that the time to begin has been: there may be a typing error in it."""
    if begin is not None and begin.strip() not in {"now", NONE} and job.spec.waits.begin_at is None:
        say("gpuqueue", f"--begin {plain(begin)} has been: job {job.id} may start at once")


def tell_found(job: Job) -> None:
    """Say that no job was made: one with the same key is there."""
    say("gpuqueue", f"job {job.id} has this dedupe key and is {job.state}: no new job was queued")
