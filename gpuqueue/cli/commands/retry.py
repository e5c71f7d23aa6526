"""The ``retry`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from gpuqueue.cli.options import job_request
from gpuqueue.cli.options.job_request import WithRest, field, report_found
from gpuqueue.cli.options.job_selection import Selection, chosen_ended, filtered, on_each
from gpuqueue.cli.options.once import Once
from gpuqueue.cli.output.arrays import SHOWN
from gpuqueue.client import Client
from gpuqueue.client.selection import Which
from gpuqueue.console import print_message
from gpuqueue.errors import GpuQueueError
from gpuqueue.model.job import Job
from gpuqueue.model.job_ref import JobName
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.text.sanitize import short

#: Most jobs that the line about dependencies names.
NAMED = 5
#: The parameters that select jobs. The others change the request.
SELECTION = ("ids", "user", "name", "tag", "all_jobs", "yes", "ends", "since")


class _Command(WithRest, Once):
    """A command with filters, and with words after ``--``."""


@click.command(cls=_Command)
@chosen_ended()
@field("mem", "Memory on each device, or auto. Default: as before.")
@field("gpus", "Number of devices. Default: as before.")
@field("device", f"{job_request.DEVICE} Default: as before.")
@field("time_limit", "Time limit; none removes it. Default: as before.")
@field("cpus", "At most this many processors of the host; none removes the limit. Default: as before.")
@field("cpu_mem", "At most this much host memory; none removes the limit. Default: as before.")
@field("priority", "Priority. Default: as before.")
@click.option("-e", "--env", multiple=True, metavar="K=V", help="Change an environment variable. Repeatable.")
@click.pass_context
def retry(ctx: click.Context, /, **words: Any) -> None:
    """Submit ended jobs again, as new jobs, and print their ids.

    The new job uses the environment and the directory of the first submission. Words after -- replace the arguments of
    its script. For an array (17) or a range of ids (12-19), only failed and lost jobs are submitted again. A job (12)
    or a member (17_2) is always submitted again. If one job cannot be submitted again, nothing is submitted.

    Filters select failed and lost jobs that were not retried yet; the command lists them and asks for confirmation.

    Secrets in that environment are removed when a job has ended, and the environment after 30 days (see the settings).
    The new job then gets them from your current environment, and a line says so.

    The new job waits for no other job and no time: --after, --begin and --hold do not apply again.

    \b
    Examples:
      gpuqueue retry 12
      gpuqueue retry --name 'sweep*' --since yesterday
      gpuqueue retry 12 --mem 12G --time 8h
      gpuqueue retry 12 -- --epochs 1
      gpuqueue wait $(gpuqueue retry 17)
    """  # noqa: D301 - \b is click's mark for lines to keep
    selection = Selection(state=None, **{name: words.pop(name) for name in SELECTION})
    selection.check("retry")
    given = {name: value for name, value in words.items() if value not in (None, ())}
    specs: dict[str, JobSpec] = {}
    waited: list[str] = []
    firsts: dict[str, Job] = {}

    def warn(line: str) -> None:
        print_message("gpuqueue", line)

    def judge(client: Client, name: str) -> None:
        spec = specs[name] = client.jobs.spec_again(name, args=ctx.obj, warn=warn, **given)
        before = None if spec.retry_of is None else client.jobs.get(spec.retry_of)
        if before is not None and before.spec.waits.after:
            waited.append(name)
        if before is not None:
            firsts[name] = before

    def submit(client: Client, name: str) -> str:
        earlier = _earlier(client, firsts[name]) if name in firsts else ""
        job = client.jobs.submit_spec(specs[name], found=report_found)
        if name in firsts:
            _report_first(job, firsts[name], earlier)
        return str(job.id)

    with Client() as client:
        names: Sequence[str] = selection.ids
        if selection.by_filter:
            ends: dict[str, Any] = {"states": selection.ends} if selection.ends else {}
            names = filtered(
                client, "retry", selection, partial(client.jobs.choose_ended, since=selection.since, **ends)
            )
        code = on_each(client, names, judge, which=Which.FAILED, verb="retry")
        if code:
            sys.exit(code)
        if waited:
            _report_waited(waited)
        sys.exit(on_each(client, list(specs), submit))


def _earlier(client: Client, first: Job) -> str:
    """Return the earlier retries of the job *first*; an empty text if there are none, or nobody says."""
    with suppress(GpuQueueError):  # an older service does not say
        return short(", ".join(map(str, client.jobs.retries(first.id))), SHOWN)
    return ""


def _report_first(job: Job, first: Job, earlier: str) -> None:
    """Print which members of the array *first* the new *job* runs again, and which jobs did so before."""
    if job.spec.array is not None and first.spec.array is not None:
        which = f"{len(job.spec.array)} of {len(first.spec.array)} members of job {first.id}"
        names = short(str(JobName(first.id, job.spec.array.indexes)), SHOWN)
        print_message("gpuqueue", f"job {job.id} runs {which} again: {names}")
    if earlier:
        print_message("gpuqueue", f"job {first.label} was retried before, as job {earlier}")


def _report_waited(names: Sequence[str]) -> None:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    jobs = f"job{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{more}"
    print_message(
        "gpuqueue", f"{jobs} waited for other jobs (--after), and the retry does not: gpuqueue edit ID --after sets it"
    )
