"""The ``run`` command."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpuqueue.cli.options.job_request import (
    Submitting,
    job_options,
    report_if_past,
    submit_job,
    warn_if_alone,
    warn_if_nobody_sends,
)
from gpuqueue.cli.output.warnings import warn_if_no_program, warn_if_signal_is_lost, warn_of_unknown_variables
from gpuqueue.model.terminal_size import Window


def _one_job_only(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value:
        option = param.opts[0]
        words = f"{option} makes many jobs, and run attends one: gpuqueue submit {option} …, then gpuqueue wait"
        raise click.UsageError(words, ctx)


@click.command(cls=Submitting)
@job_options
@click.option("--array", hidden=True, expose_value=False, callback=_one_job_only)
@click.option("--sweep", hidden=True, expose_value=False, callback=_one_job_only)
@click.option("--each-line", hidden=True, expose_value=False, callback=_one_job_only)
@click.option("--max-failures", hidden=True, expose_value=False, callback=_one_job_only)
@click.pass_context
def run(ctx: click.Context, /, **options: Any) -> None:
    """Submit a job, show its output while it runs, and return its exit code.

    Ctrl-C asks whether to cancel the job, leave it running, or continue. A second Ctrl-C cancels it. The job's output
    goes to standard output. Messages of gpuqueue, such as why the job waits, go to standard error.

    With --pty your terminal is attached to the job: it gets all keys, including Ctrl-C. Enter ~ . detaches.

    \b
    Examples:
      gpuqueue run train.py --mem 6G -- --epochs 3
      gpuqueue run --mem 1G -- nvidia-smi
      gpuqueue run --pty --mem 6G -- python -i train.py
    """  # noqa: D301 - \b is click's mark for lines to keep
    if options["pty"] and sys.stdin.isatty() and sys.stdout.isatty():
        options["pty"] = Window.ours(typed=True)
    from gpuqueue.cli.follow.attach import Follower  # noqa: PLC0415 - lazy import for startup time
    from gpuqueue.cli.follow.ctrl_c import CtrlC  # noqa: PLC0415 - as above
    from gpuqueue.cli.follow.terminal import report_unread  # noqa: PLC0415 - as above
    from gpuqueue.client import Client  # noqa: PLC0415 - as above

    begin = options["begin"]
    with Client() as client, CtrlC() as ctrl_c:  # Ctrl-C must not leave a job whose id was not printed
        job = submit_job(client, ctx.obj, options)
        click.echo(f"gpuqueue: job {job.id} queued", err=True)
        report_unread()
        report_if_past(begin, job)
        warn_if_no_program(job.spec, f"job {job.id}")
        warn_if_signal_is_lost(job.spec)
        warn_if_alone(client, job)
        warn_if_nobody_sends(client, job)
        warn_of_unknown_variables()
        sys.exit(Follower(client, job.id, ctrl_c, ours=True).to_the_end())
