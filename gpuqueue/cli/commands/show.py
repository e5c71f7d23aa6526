"""The ``show`` command."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpuqueue.cli.follow.status_line import report_history_away
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output.render import hanging, terminal_width
from gpuqueue.cli.plots import image_file
from gpuqueue.client import Client
from gpuqueue.errors import BadRequest, GpuQueueError, Refused
from gpuqueue.lazy.imports import later
from gpuqueue.model.run import Record

if TYPE_CHECKING:
    from gpuqueue.cli.output import code_diff, job_story, render
else:
    code_diff = later("gpuqueue.cli.output.code_diff")
    job_story = later("gpuqueue.cli.output.job_story")
    render = later("gpuqueue.cli.output.render")
from gpuqueue.cli.options.job_id import job_id

#: Lines of the log that are shown, and their width in columns without a terminal.
SHOWN_LINES, PIPE_WIDTH = 8, 200


@click.command()
@job_id
@json_option
@image_file.picture_option("a chart of the memory use")
@click.option("--diff", is_flag=True, help="Print how the copy of its code differs from its commit.")
def show(job_id: str, *, as_json: bool, plot: str | None, diff: bool) -> None:
    """Show the request of a job, each run with device, ending and peak memory, and the end of the log.

    \b
    Examples:
      gpuqueue show 12
      gpuqueue show 12 --plot memory.png
      gpuqueue show 12 --diff
      gpuqueue show 12 --json | jq .runs[-1].peak_bytes
    """  # noqa: D301 - \b is click's mark for lines to keep
    if as_json + diff + (plot is not None) > 1:
        raise BadRequest("--json, --plot and --diff exclude each other: choose one")
    with Client() as client:
        if diff:
            code_diff.print_diff(client.snapshots.diff(job_id))
            return
        record = _with_figures(client, client.jobs.show(job_id, away=report_history_away))
        is_text = not as_json and plot is None
        written = client.logs.end(record, render.LOG_BYTES) if is_text else b""
        is_apart = is_text and record.job.spec.separate_stderr
        errors = client.logs.end(record, render.LOG_BYTES, stderr=True) if is_apart else b""
        now = job_story.live_of(client, record.job) if is_text else None
        kept = job_story.kept_of(client, record) if record.job.spec.keep and plot is None else None
        failed = list(job_story.failed_lines(client, record.job)) if is_text else []
        silent = list(job_story.silent_host_lines(client, record.job)) if is_text else []
    if plot is not None:
        _plot(record, plot)
        return
    if as_json:
        print_json(record, kept_files=kept)
        return
    about_kept = None if kept is None else job_story.kept_line(kept, record.job.label)
    click.echo(job_story.story(record, now, terminal_width(), failed=failed, kept=about_kept))
    for line in silent:
        click.echo("\n".join(hanging(line, terminal_width())))
    _show_end(written, f"the end of its log (gpuqueue logs {job_id})")
    _show_end(errors, f"the end of its standard error (gpuqueue logs --stderr {job_id})")
    missing = job_story.missing_file_line(record, written + b"\n" + errors, client.settings.host)
    if missing is not None:
        click.echo("\n".join(["", *hanging(missing, terminal_width())]))


def _with_figures(client: Client, record: Record) -> Record:
    """Return *record* with what its last run has used and reported so far, if that goes on."""
    run = record.last_run
    if run is None or run.ended_at is not None or not record.job.state.is_active:
        return record
    try:
        figures = client.logs.figures(record.job.label)
    except GpuQueueError:  # the rest is shown without them
        return record
    return record if figures is None else replace(record, runs=(*record.runs[:-1], figures.within(run)))


def _show_end(written: bytes, what: str) -> None:
    lines = render.log_end(written, SHOWN_LINES, (terminal_width() or PIPE_WIDTH) - 2)
    if lines:
        click.echo("\n".join(["", f"{what}:", *(f"  {line}" for line in lines)]))


def _plot(record: Record, path: str) -> None:
    from gpuqueue.cli.plots import job_memory  # noqa: PLC0415 - only for --plot

    run = job_memory.drawable(record)
    if run is None:
        raise Refused(
            f"job {record.job.label} has no memory to draw: its runs are too short, have not ended, or "
            "were not measured"
        )
    image_file.write(path, job_memory.memory(record, run))
