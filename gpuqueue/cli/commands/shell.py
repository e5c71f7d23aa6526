"""The ``shell`` command."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpuqueue.cli.options.job_request import (
    WithRest,
    interactive_options,
    note,
    submit_job,
    warn_if_alone,
)
from gpuqueue.errors import BadRequest
from gpuqueue.model.terminal_size import Window

#: What runs without a PROGRAM: the login shell of the job's account, or that of every machine where it is missing.
LOGIN_SHELL = ("sh", "-c", 'command -v "$SHELL" >/dev/null || SHELL=/bin/sh; export SHELL; exec "$SHELL"')


@click.command(cls=WithRest)
@interactive_options
@click.pass_context
def shell(ctx: click.Context, /, **options: Any) -> None:
    """Start your login shell, or a program, on a device, at this terminal.

    It is a job: it waits in the queue until the device has the memory, and Ctrl-C cancels it while it waits. Then all
    keys go to it. It ends with exit or its time limit. A lost connection, or Enter ~ ., leaves it running: gpuqueue
    attach ID comes back to it.

    \b
    Examples:
      gpuqueue shell --mem 8G
      gpuqueue shell --mem 8G --time 2h -- ipython
    """  # noqa: D301 - \b is click's mark for lines to keep
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadRequest("a shell needs a terminal, and this is none: for a program without one, use gpuqueue run")
    from gpuqueue.cli.follow.attach import Follower  # noqa: PLC0415 - lazy import for startup time
    from gpuqueue.cli.follow.ctrl_c import CtrlC  # noqa: PLC0415 - as above
    from gpuqueue.client import Client  # noqa: PLC0415 - as above

    fixed = {"script": None, "pty": Window.ours(typed=True), "requeue": False, "name": options["name"] or "shell"}
    with Client() as client, CtrlC() as ctrl_c:  # Ctrl-C must not leave a job whose id was not printed
        job = submit_job(client, ctx.obj or LOGIN_SHELL, {**options, **fixed})
        note(f"job {job.id} queued, for at most {options['time_limit']} (gpuqueue extend {job.id} gives it more)")
        warn_if_alone(client, job)
        sys.exit(Follower(client, job.id, ctrl_c, ours=True, asks=False).to_the_end())
