"""``top``: the site, live."""

from __future__ import annotations

import sys

import click

from gpuqueue.cli.screen import lines
from gpuqueue.cli.screen.snapshot import take
from gpuqueue.client import Client


@click.command()
@click.option("-u", "--user", help="Only this user's jobs.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("--once", is_flag=True, help="Print one picture as text and leave; so does a pipe.")
def top(user: str | None, interval: float, *, once: bool) -> None:
    """Show devices and jobs live, with bars of memory and progress; cancel, hold and look into logs with a key.

    \b
    Examples:
      gpuqueue top
      gpuqueue top --once | head
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        if once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            click.echo(lines.as_text(take(client, user=user), client.settings.beat_s, user))
            return
        client.queue.now_ms()  # what does not answer is told before the screen is taken
        from gpuqueue.cli.screen.app import Top  # noqa: PLC0415 - Textual takes a while, and a pipe needs none of it

        Top(client, user=user, interval_s=interval).run()
