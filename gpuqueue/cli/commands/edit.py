"""The ``edit`` command."""

from __future__ import annotations

from typing import Any

import click

from gpuqueue.cli.options import job_request
from gpuqueue.cli.options.add import with_options
from gpuqueue.cli.options.job_id import one_job_argument
from gpuqueue.cli.options.job_request import field
from gpuqueue.client import Client
from gpuqueue.model.dependencies import BEGINS
from gpuqueue.model.job_spec import AUTO
from gpuqueue.text.sanitize import plain
from gpuqueue.words.values import size_of, source_of

#: Parameter in Python -> its name on the command line, where they differ.
_CALLED = {"time_limit": "time", "preference": "placement"}

_OPTIONS = (
    field("mem", "Memory on each device, or auto: what earlier runs needed."),
    field("gpus", "Number of devices, all on one host."),
    field("device", job_request.DEVICE),
    field("device_type", f"{job_request.DEVICE_TYPE}; none removes it."),
    *job_request.DEVICE_CHANGES,
    field("time_limit", "Time limit; none removes it."),
    field("cpus", "At most this many processors of the host; none removes the limit."),
    field("cpu_mem", "At most this much host memory; none removes the limit."),
    field("signal", "Signal sent this long before the time limit; none removes it."),
    field("name", "Name of the job."),
    field("priority", "Jobs of higher priority start first."),
    field("pool", "Only devices of this pool; '' for any pool."),
    field("after", f"{job_request.AFTER} Replaces all earlier ones; none removes them."),
    field("begin", f"Earliest start: {BEGINS}; now: at once."),
    field("retries", "Retry after a failure, at most N times, including past retries."),
    field("retry_on", job_request.RETRY_ON),
    field("mem_retries", job_request.MEM_RETRIES),
    field("on_end", "Notify these targets at its end, in place of all earlier ones; none removes them."),
    field("on_fail", "The same unless it succeeds; none removes them."),
    field("at_once", "Concurrent members of an array, even if it has started; none: no limit."),
)


@click.command()
@one_job_argument("queued", "held")
@with_options(_OPTIONS)
def edit(job_id: str, **changes: Any) -> None:
    """Change the request of a waiting job. If one change is refused, nothing is changed.

    The job keeps its place. Omitted options change nothing.

    \b
    Examples:
      gpuqueue edit 12 --mem 8G --time 4h
      gpuqueue edit 12 --after none --begin now
      gpuqueue edit 17 --at-once 4
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        given = {name: value for name, value in changes.items() if value not in (None, ())}
        job = client.jobs.edit(job_id, **given)
        if given.get("mem") == AUTO:
            given["mem"] = f"{size_of(job.spec)}{source_of(job.spec)}"
        click.echo(f"job {job.id}: {job.state}, {', '.join(_in_words(*each) for each in given.items())}")
        job_request.warn_if_alone(client, job)


def _in_words(name: str, value: object) -> str:
    """Return a change in the words of its option: ``mem 8G``, ``exclusive``."""
    words = _CALLED.get(name, name.replace("_", " "))
    if isinstance(value, bool):
        return words if value else "shared"
    text = ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
    return f"{words} {plain(text)}".rstrip() if text else f"any {words}"
