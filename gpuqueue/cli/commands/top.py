"""The ``top`` command."""

from __future__ import annotations

import math
import sys

import click

from gpuqueue.cli.completion.candidates import users
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output.render import is_dumb, terminal_width
from gpuqueue.cli.top import lines
from gpuqueue.cli.top.lines import take
from gpuqueue.client import Client
from gpuqueue.errors import BadRequest


@click.command()
@click.option("-u", "--user", metavar="NAME", help="Only this user's jobs.", shell_complete=users)
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two updates.",
)
@click.option("--once", is_flag=True, help="Print one snapshot as text and exit; default in a pipe.")
@json_option
def top(user: str | None, interval: float, *, once: bool, as_json: bool) -> None:
    """Show devices and jobs live, with memory and progress. Keys cancel or hold jobs and show their logs.

    \b
    Examples:
      gpuqueue top
      gpuqueue top --once | head
    """  # noqa: D301 - \b is click's mark for lines to keep
    if math.isnan(interval):  # FloatRange accepts it
        raise BadRequest("--interval: nan is not valid: give a number from 0.2 to 3600")
    with Client() as client:
        if as_json:
            print_json(take(client, user=user))
            return
        if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            click.echo(lines.as_text(take(client, user=user), client.settings.heartbeat_s, user, terminal_width()))
            return
        if is_dumb():
            raise BadRequest("this terminal has no full screen (TERM): gpuqueue top --once prints one snapshot")
        client.devices.are_known()  # report an unreachable store before the full-screen view starts
        from gpuqueue.cli.top.app import Top  # noqa: PLC0415 - lazy import: Textual is slow

        screen = Top(client, user=user, interval_s=interval)
        screen.run()
        sys.exit(screen.return_code or 0)
