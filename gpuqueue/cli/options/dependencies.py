"""Options for dependencies, begin time, hold, deduplication and retries of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gpuqueue.cli.completion.candidates import awaited, listed, one_of
from gpuqueue.console import say
from gpuqueue.model.job import Job
from gpuqueue.model.retries import DEFAULT_ON, RetryOn
from gpuqueue.model.times import AT_ONCE, BEGINS
from gpuqueue.text.sanitize import plain

Option = Callable[[Any], Any]

_AFTER = "Wait until this job has succeeded (ok, default), ended (any) or failed (fail). Repeatable, or use commas."
_RETRY_ON = f"Endings after which to retry: {', '.join(map(str, RetryOn))}."


def _after(help_text: str) -> Option:
    return click.option(
        "--after", multiple=True, metavar="ID[:ok|any|fail]", help=help_text, shell_complete=listed(awaited)
    )


def _begin(help_text: str) -> Option:
    return click.option("--begin", metavar="TIME", help=help_text)


def _retries(help_text: str, default: int | None = None) -> Option:
    return click.option("--retries", type=int, metavar="N", default=default, help=help_text)


def _retry_on(help_text: str) -> Option:
    return click.option("--retry-on", metavar="ENDINGS", help=help_text, shell_complete=listed(one_of(RetryOn)))


#: Options of ``edit``: without defaults, since an omitted option changes nothing.
new_after = _after(f"{_AFTER} Replaces all earlier ones; none removes them.")
new_begin = _begin(f"Earliest start: {BEGINS}; now: at once.")
new_retries = _retries("Retry after a failure, at most N times, including past retries.")
new_retry_on = _retry_on(_RETRY_ON)

#: Options of ``submit`` and ``run``.
WAIT_OPTIONS: list[Option] = [
    _after(_AFTER),
    _begin(f"Earliest start: {BEGINS}."),
    click.option("--hold", is_flag=True, help="Submit the job as held: it waits for gpuqueue release."),
    click.option(
        "--dedupe", metavar="KEY", help="If your job with this key waits or runs, print its id and submit nothing."
    ),
    _retries("Retry after a failure, at most N times.", 0),
    _retry_on(f"{_RETRY_ON} [default: {','.join(map(str, DEFAULT_ON))}]"),
]


def report_if_past(begin: str | None, job: Job) -> None:
    """Warn if the time of ``--begin`` is in the past, which may be a typing error."""
    if begin is not None and begin.strip() not in AT_ONCE and job.spec.waits.begin_at is None:
        say("gpuqueue", f"--begin {plain(begin)} has been: job {job.id} may start at once")


def report_found(job: Job) -> None:
    """Print that no job was queued, since *job* has the same dedupe key."""
    say("gpuqueue", f"job {job.id} has this dedupe key and is {job.state}: no new job was queued")
