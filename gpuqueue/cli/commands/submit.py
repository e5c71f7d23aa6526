"""The ``submit`` command."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpuqueue.cli.options.job_request import (
    Submitting,
    array_options,
    job_options,
    naming_files,
    note,
    report_if_past,
    request_for,
    submit_job,
    warn_if_alone,
    warn_if_nobody_sends,
)
from gpuqueue.cli.output.warnings import warn_if_no_program, warn_if_signal_is_lost, warn_of_unknown_variables
from gpuqueue.client import Client
from gpuqueue.console import print_message
from gpuqueue.model.job_request import JobRequest


@click.command(cls=Submitting)
@job_options
@array_options
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and submit nothing.")
@click.pass_context
def submit(ctx: click.Context, /, **options: Any) -> None:
    """Submit a job and print its id.

    A .py SCRIPT runs with the Python of your active environment. The words after -- are its arguments.
    Without a SCRIPT, the words after -- are the command. The job gets your environment and working directory.

    \b
    Examples:
      gpuqueue submit train.py --mem 6G
      gpuqueue submit train.py --mem 6G --time 2h -- --lr 1e-3
      gpuqueue submit --mem 20G --gpus 2 -- torchrun --nproc-per-node 2 train.py
      gpuqueue submit train.py --mem auto
      gpuqueue submit train.py --mem 6G --sweep lr=1e-3,1e-4 -- --lr {lr}
    """  # noqa: D301 - \b is click's mark for lines to keep
    begin, is_dry = options["begin"], options.pop("dry_run")
    with Client() as client:
        if is_dry:
            with naming_files(options):
                _print_request(client, request_for(client, ctx.obj, options))
            return
        job = submit_job(client, ctx.obj, options)
        try:
            click.echo(job.id)
            sys.stdout.flush()
        except OSError:
            click.echo(f"gpuqueue: job {job.id} is queued, but its id could not be printed", err=True)
            raise
        report_if_past(begin, job)
        warn_if_no_program(job.spec, f"job {job.id}")
        warn_if_signal_is_lost(job.spec)
        warn_if_alone(client, job)
        warn_if_nobody_sends(client, job)
        warn_of_unknown_variables()


def _print_request(client: Client, request: JobRequest) -> None:
    """Print what a submit of *request* would submit, and the warnings that do not depend on its job."""
    from gpuqueue.cli.output.job_story import request_story  # noqa: PLC0415 - slow to import, for --dry-run
    from gpuqueue.cli.output.render import terminal_width  # noqa: PLC0415 - as above

    spec = client.jobs.spec_of(request, note=note)
    click.echo(request_story(spec, terminal_width()))
    warn_if_no_program(spec, "the job")
    warn_if_signal_is_lost(spec)
    warn_of_unknown_variables()
    print_message("gpuqueue", "nothing was submitted: --dry-run")
