"""Options for dependencies, begin time, hold, deduplication and retries of a job."""

from __future__ import annotations

import click

from gpuqueue.cli.options.fields import field
from gpuqueue.console import print_message
from gpuqueue.model.dependencies import AT_ONCE, BEGINS
from gpuqueue.model.job import Job
from gpuqueue.model.retries import DEFAULT_ON, RetryOn
from gpuqueue.text.sanitize import plain

#: Help texts of options that ``submit`` and ``edit`` have.
AFTER = "Wait until this job has succeeded (ok, default), ended (any) or failed (fail). Repeatable, or use commas."
RETRY_ON = f"Endings after which to retry: {', '.join(map(str, RetryOn))}."
MEM_RETRIES = "Run again with more memory after a lack of device memory, at most N times."

#: Options of ``submit`` and ``run``.
WAIT_OPTIONS = (
    field("after", AFTER),
    field("begin", f"Earliest start: {BEGINS}."),
    click.option("--hold", is_flag=True, help="Submit the job as held: it waits for gpuqueue release."),
    click.option(
        "--dedupe", metavar="KEY", help="If your job with this key waits or runs, print its id and submit nothing."
    ),
    field("retries", "Retry after a failure, at most N times.", default=0),
    field("retry_on", f"{RETRY_ON} [default: {','.join(map(str, DEFAULT_ON))}]"),
    field("mem_retries", f"{MEM_RETRIES} Default: the site's, usually 2. 0: never."),
)


def report_if_past(begin: str | None, job: Job) -> None:
    """Warn if the time of ``--begin`` is in the past, which may be a typing error."""
    if begin is not None and begin.strip() not in AT_ONCE and job.spec.waits.begin_at is None:
        print_message("gpuqueue", f"--begin {plain(begin)} is in the past: job {job.id} may start at once")


def report_found(job: Job) -> None:
    """Print that no job was queued, since *job* has the same dedupe key."""
    print_message("gpuqueue", f"job {job.id} has this dedupe key and is {job.state}: no new job was queued")
