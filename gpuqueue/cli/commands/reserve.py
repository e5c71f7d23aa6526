"""The ``reserve`` command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpuqueue.cli.commands.drain import devices_argument
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output.devices import calendar_lines, unusable
from gpuqueue.client import Client
from gpuqueue.console import print_message
from gpuqueue.lazy.imports import later
from gpuqueue.model.dependencies import AT_ONCE
from gpuqueue.text.sanitize import brief
from gpuqueue.words.values import users_of, when

if TYPE_CHECKING:
    from gpuqueue.model import times
else:  # for a start that is given
    times = later("gpuqueue.model.times")


class Reserving(click.Group):
    """A group whose first command, ``add``, needs not be named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put ``add`` before words that name no command."""
        named = args[:1] and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named or not args else ["add", *args])


@click.group(cls=Reserving)
def reserve() -> None:
    """Reserve devices for users, from a time until another: then only their jobs start there.

    gpuqueue reserve DEVICE… --from TIME --until TIME is short for gpuqueue reserve add.

    \b
    Examples:
      gpuqueue reserve list
      gpuqueue reserve cancel 17
    """  # noqa: D301 - \b is click's mark for lines to keep


@reserve.command()
@devices_argument
@click.option("--all", "all_here", is_flag=True, help="All devices of this host.")
@click.option("--from", "begin", metavar="TIME", help="18:00, 'fri 18:00', 2h, 2026-11-01T09:00. Default: now.")
@click.option("--until", metavar="TIME", required=True, help="The same; a duration counts from the start.")
@click.option("--user", "users", metavar="NAME", multiple=True, help="User it is for; may be repeated. Default: you.")
@click.option("--reason", metavar="TEXT", default="", help="Reason, which all users see.")
def add(
    devices: tuple[str, ...], begin: str | None, until: str, users: tuple[str, ...], reason: str, *, all_here: bool
) -> None:
    """Reserve devices from a time until another. The word add may be left out.

    DEVICE is as for gpuqueue drain. Before the start, jobs of others start there only if they are over by then. What
    still runs of others at the start is preempted if it may run again; else it goes on.

    \b
    Examples:
      gpuqueue reserve add 3 --from "fri 18:00" --until "mon 08:00"
      gpuqueue reserve add nodeA --until 4h --user ann --user bob --reason course
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        made = client.devices.reserve(*devices, begin=begin, until=until, users=users, reason=reason, all_here=all_here)
        statuses = [status for status in client.devices.list() if status.device.uuid in made.devices]
        closed = unusable(made, statuses, client.settings.heartbeat_s)
    if begin is not None and begin.strip() not in AT_ONCE and times.begin(begin) is None:
        print_message("gpuqueue", f"{brief(begin)} is over: it is reserved from now on")
    count = len(made.devices)
    where = f"{count} devices" if count > 1 else "1 device"
    click.echo(
        f"reservation {made.id}: {where} for {users_of(made)} from {when(made.begins_at)} until {when(made.ends_at)}"
    )
    if closed:
        print_message("gpuqueue", f"not usable as it is now: {closed}")


@reserve.command("list")
@json_option
def list_reservations(*, as_json: bool) -> None:
    """List the reservations that are not over.

    \b
    Examples:
      gpuqueue reserve list
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        if as_json:
            print_json(client.devices.reservations())
            return
        lines = [*calendar_lines(client.devices.list(), client.settings.heartbeat_s)]
    for line in lines or ["no reservations: see gpuqueue reserve --help"]:
        click.echo(line)


@reserve.command()
@click.argument("ids", metavar="ID…", nargs=-1, required=True, type=click.IntRange(min=1))
def cancel(ids: tuple[int, ...]) -> None:
    """Cancel reservations. One that has begun ends now.

    \b
    Examples:
      gpuqueue reserve cancel 17
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        for each in ids:
            client.devices.cancel_reservation(each)
            click.echo(f"reservation {each}: cancelled")
