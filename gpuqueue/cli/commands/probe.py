"""The ``probe`` command."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gpuqueue.cli.options.job_request import WithRest, probe_options, submit_job, warn_if_alone
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.client import Client
from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest, GpuQueueError, Refused
from gpuqueue.lazy.imports import later
from gpuqueue.text.units import format_duration, parse_duration

if TYPE_CHECKING:
    from gpuqueue.cli.follow import ctrl_c, status_line, updated_line
    from gpuqueue.cli.output import probe_lines, render
    from gpuqueue.learning import probed
    from gpuqueue.model import probe as probes
    from gpuqueue.model import progress, progress_reader
    from gpuqueue.model.job import Job
    from gpuqueue.model.run import Record
else:  # --help needs none of them
    ctrl_c = later("gpuqueue.cli.follow.ctrl_c")
    render = later("gpuqueue.cli.output.render")
    probe_lines = later("gpuqueue.cli.output.probe_lines")
    probed = later("gpuqueue.learning.probed")
    probes = later("gpuqueue.model.probe")
    progress_reader = later("gpuqueue.model.progress_reader")
    status_line = later("gpuqueue.cli.follow.status_line")
    updated_line = later("gpuqueue.cli.follow.updated_line")

#: The variable that keeps JAX from taking the whole device at its start, which would hide what it needs.
JAX = "XLA_PYTHON_CLIENT_PREALLOCATE"
#: The tag of the job of a probe.
TAG = "probe"
#: Lines of the log of a failed script that are shown, and their width in columns.
SHOWN_LINES, WIDTH = 8, 200


@click.command(cls=WithRest)
@probe_options
@click.option(
    "--seconds", metavar="TIME", default="10m", show_default=True, help="End the run after this time: 90, 90s, 10m."
)
@click.option(
    "--flat",
    metavar="TIME",
    default="1m",
    show_default=True,
    help="End the run when its peak has not grown for this time; 0: never.",
)
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(1),
    help="End the run after N steps, if its output has a progress bar that counts them.",
)
@json_option
@click.pass_context
def probe(ctx: click.Context, /, seconds: str, flat: str, *, steps: int | None, as_json: bool, **options: Any) -> None:
    """Run a script alone on a device for a short time, and say how much memory and time to ask for.

    The probe is a job with a whole device: it waits in the queue, its log is kept, and --mem auto learns from its peak.
    It ends at the first of --seconds, --flat, --steps and the end of the script. The peak is a lower bound unless the
    script ended by itself. Ctrl-C cancels the probe.

    Exit code: 0 with an answer; 1 if the script failed or its peak is unknown; 130 if the probe was cancelled.

    \b
    Examples:
      gpuqueue probe train.py
      gpuqueue probe train.py --steps 200 -- --batch-size 64
      gpuqueue probe --gpus 2 --seconds 5m -- torchrun --nproc-per-node 2 train.py
    """  # noqa: D301 - \b is click's mark for lines to keep
    if options["script"] is None and not ctx.obj:
        raise BadRequest("no command: name a script (gpuqueue probe train.py), or put a command after --")
    limit_s = _time_s("--seconds", seconds)
    if not limit_s:
        raise BadRequest("--seconds must be above 0: a probe needs some time")
    rule = probes.Probe(flat_s=_time_s("--flat", flat) or None, steps=steps)
    job = None
    try:
        with Client() as client, ctrl_c.CtrlC() as interrupt:  # Ctrl-C must not leave a job whose id was not printed
            job = submit_job(client, ctx.obj, {**options, **_request(options["env"], str(rule), limit_s)})
            where = "a device" if options["gpus"] == 1 else f"{options['gpus']} devices"
            print_message("gpuqueue", f"job {job.id} queued: alone on {where}, for at most {format_duration(limit_s)}")
            warn_if_alone(client, job)
        interrupt.check()
        with Client() as client:
            record = _ended(client, job)
            found, last = _found(client, record)
    except KeyboardInterrupt:
        if job is not None:
            _cancel(job)
        raise
    if as_json:
        print_json(found, progress=last, record=record)
    else:
        shown = probe_lines.Shown(record=record, found=found, progress=last)
        click.echo("\n".join(probe_lines.lines(shown)))


def _time_s(option: str, text: str) -> float:
    """Return a time that may be a bare number of seconds."""
    bare = text.removesuffix("s")
    if bare.isascii() and bare.isdigit() and len(bare) <= 9:  # noqa: PLR2004 - more than ten years
        return float(bare)
    try:
        return parse_duration(text)
    except BadRequest as error:
        raise BadRequest(f"{option}: {error}") from None


def _request(env: tuple[str, ...], rule: str, limit_s: float) -> dict[str, Any]:
    """Return the fields of the request that make the job a probe."""
    is_set = JAX in os.environ or any(each.startswith(f"{JAX}=") for each in env)
    return {
        "exclusive": True,
        "time_limit": limit_s,
        "probe": rule,
        "mem_retries": 0,  # there is no more than a whole device
        "tags": (TAG,),
        "env": env if is_set else (f"{JAX}=false", *env),
    }


def _ended(client: Client, job: Job) -> Record:
    """Wait until the probe has ended, and return its job with its run."""
    line, reported = updated_line.WaitLine(client), set[str]()
    for seen in client.jobs.watch(job.id, away=status_line.report_away):
        line.seen(seen)
        if str(seen.state) in {"running", "held"} - reported:
            reported.add(str(seen.state))
            line.clear()
            status_line.report_state(job.id, seen)
    line.clear()
    client.jobs.recorded(seen)  # waits for the history, which has the runs to learn from
    return client.jobs.show(job.id, away=status_line.report_history_away)


def _found(client: Client, record: Record) -> tuple[probed.Probed, progress.Progress | None]:
    """Return what the probe has shown, and the last progress in its log.

    Raises:
        GpuQueueError: the script failed, the job was cancelled, or the peak is unknown.

    """
    written = client.logs.end(record, max(progress_reader.TAIL_BYTES, render.LOG_BYTES))
    last = progress_reader.progress_of(written, record.job.spec.command)
    run = record.last_run
    found = None if run is None else probed.probed(run, last, client.settings.headroom_bytes)
    if found is not None and found.mem_bytes is not None and record.advice is not None:
        found = replace(found, mem_bytes=record.advice.mem_bytes, runs=record.advice.runs)
    if found is not None and found.mem_bytes is not None and found.peak_bytes:
        return found, last
    if probe_lines.was_cancelled(record):
        print_message("gpuqueue", f"job {record.job.id} was cancelled")
        sys.exit(130)
    if probe_lines.has_failed(record):
        for text in render.log_end(written, SHOWN_LINES, WIDTH):
            click.echo(f"  {text}", err=True)
    raise GpuQueueError(probe_lines.why_not(record))


def _cancel(job: Job) -> None:
    """Cancel the probe over a connection of its own: the other one may wait for an answer."""
    with Client() as client, suppress(Refused):
        client.jobs.cancel(job.id)
        print_message("gpuqueue", f"job {job.id} cancelled")
