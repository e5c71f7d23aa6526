"""The ``submit`` command."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpuqueue.cli.options.job_request import (
    WithRest,
    array_options,
    job_options,
    report_if_past,
    submit_job,
    warn_if_alone,
    warn_if_nobody_sends,
)
from gpuqueue.cli.output.warnings import warn_if_no_program, warn_of_unknown_variables
from gpuqueue.client import Client


@click.command(cls=WithRest)
@job_options
@array_options
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
    begin = options["begin"]
    with Client() as client:
        job = submit_job(client, ctx.obj, options)
        try:
            click.echo(job.id)
            sys.stdout.flush()
        except OSError:
            click.echo(f"gpuqueue: job {job.id} is queued, but its id could not be printed", err=True)
            raise
        report_if_past(begin, job)
        warn_if_no_program(job)
        warn_if_alone(client, job)
        warn_if_nobody_sends(client, job)
        warn_of_unknown_variables()
