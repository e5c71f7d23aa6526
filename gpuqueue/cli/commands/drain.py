"""The commands ``drain`` and ``resume``."""

from __future__ import annotations

import sys

import click

from gpuqueue.cli.completion.candidates import device_names
from gpuqueue.cli.output.devices import device_name, going_on, jobs_on
from gpuqueue.client import Client
from gpuqueue.errors import Refused
from gpuqueue.words.values import end_in_words

devices_argument = click.argument("devices", metavar="DEVICE…", nargs=-1, shell_complete=device_names)


@click.command()
@devices_argument
@click.option("--all", "all_here", is_flag=True, help="All devices of this host.")
@click.option("--at", metavar="TIME", help="When: 18:00, 'tomorrow 6pm', 2h, 2026-11-01T09:00. Default: now.")
@click.option("--reason", metavar="TEXT", default="", help="Reason, which gpuqueue gpus shows to all users.")
def drain(devices: tuple[str, ...], at: str | None, reason: str, *, all_here: bool) -> None:
    """Stop devices from taking new jobs until gpuqueue resume. Running jobs continue.

    DEVICE is an index on this host, HOST:INDEX, a UUID or its first characters, or a host: all of its devices. With
    --at, a device takes jobs until that time, but only those that are over by then.

    \b
    Examples:
      gpuqueue drain 3 --reason "the fan is broken"
      gpuqueue drain nodeA:0
      gpuqueue drain --all --reason "new driver tonight"
      gpuqueue drain nodeA --at "tomorrow 18:00" --reason maintenance
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        drained = client.devices.drain(*devices, reason=reason, at=at, all_here=all_here)
        called = client.jobs.labels(jobs_on(drained))
    for each in drained:
        if each.drains or each.ends_at is None:
            click.echo(f"{device_name(each)}: takes no new job{going_on(each.jobs, called)}")
        else:
            click.echo(f"{device_name(each)}: {end_in_words(each)}, and takes only jobs that are over by then")


@click.command()
@devices_argument
@click.option("--all", "all_here", is_flag=True, help="All devices of this host.")
def resume(devices: tuple[str, ...], *, all_here: bool) -> None:
    """Let devices take jobs again that a user or repeated quick failures drained, and remove a planned end.

    DEVICE is as for gpuqueue drain.

    \b
    Examples:
      gpuqueue resume 3
      gpuqueue resume --all
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        resumed = client.devices.resume(*devices, all_here=all_here)
    closed = [each for each in resumed if each.drains]
    for each in resumed:
        if each not in closed:
            end = end_in_words(each)
            click.echo(f"{device_name(each)}: takes jobs again" + (f"; it {end}, with its host's time" if end else ""))
    for each in closed:
        why = "its machine is going down; gpuqueue up ends that"
        click.echo(f"gpuqueue: {device_name(each)} still takes no new job: {why}", err=True)
    sys.exit(Refused.exit_code if closed else 0)
