"""The ``exec`` command: a second command in a running job."""

from __future__ import annotations

import sys

import click

from gpuqueue.cli.commands.shell import LOGIN_SHELL
from gpuqueue.cli.options.job_id import one_job_argument
from gpuqueue.cli.options.job_request import WithRest
from gpuqueue.model.job import JobState


@click.command("exec", cls=WithRest)
@one_job_argument(JobState.RUNNING)
@click.pass_context
def exec(ctx: click.Context, job_id: str) -> None:  # noqa: A001 - the name of the command
    """Run a second command in a running job of yours, or a login shell.

    It has the job's account, environment, directory and devices, and a terminal if this is one. It ends with the job,
    and when this command ends. Its exit code is that of this command, and does not count for the job.

    \b
    Examples:
      gpuqueue exec 12 -- nvidia-smi
      gpuqueue exec 12
    """  # noqa: D301 - \b is click's mark for lines to keep
    from gpuqueue.cli.follow.second_command import shown  # noqa: PLC0415 - lazy import for startup time
    from gpuqueue.client import Client  # noqa: PLC0415 - as above
    from gpuqueue.model.terminal_size import Window  # noqa: PLC0415 - as above

    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with Client() as client:
        window = Window.ours() if has_terminal else None
        command = client.jobs.exec(job_id, ctx.obj or LOGIN_SHELL, window=window, stdin=not has_terminal)
        sys.exit(shown(command, job_id, has_terminal=has_terminal))
