"""``drain`` and ``resume``: devices that shall take no new job, and those that shall again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from gpuqueue.cli import render
from gpuqueue.cli.completing import device_names
from gpuqueue.client.changing import Changing
from gpuqueue.errors import Refused
from gpuqueue.queue.drains import Drain
from gpuqueue.queue.lease import SILENT_BEATS, DeviceStatus
from gpuqueue.words import plain

devices_argument = click.argument("devices", metavar="DEVICE…", nargs=-1, shell_complete=device_names)


@click.command()
@devices_argument
@click.option("--all", "all_here", is_flag=True, help="All devices of this host.")
@click.option("--reason", metavar="TEXT", default="", help="Why; gpuqueue gpus shows it to everybody.")
def drain(devices: tuple[str, ...], reason: str, *, all_here: bool) -> None:
    """Let devices take no new job until somebody resumes them. What runs there goes on.

    DEVICE is an index on this host, HOST:INDEX, or a UUID or its start.

    \b
    Examples:
      gpuqueue drain 3 --reason "the fan is broken"
      gpuqueue drain nodeA:0
      gpuqueue drain --all --reason "new driver tonight"
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Changing() as client:
        drained = client.drain(*devices, reason=reason, all_here=all_here)
        called = client.queue.called(jobs_on(drained))
    for each in drained:
        click.echo(f"{_name(each)}: takes no new job{_going_on(each.jobs, called)}")


@click.command()
@devices_argument
@click.option("--all", "all_here", is_flag=True, help="All devices of this host.")
def resume(devices: tuple[str, ...], *, all_here: bool) -> None:
    """Let devices take jobs again that people or quick deaths have drained.

    DEVICE is an index on this host, HOST:INDEX, or a UUID or its start.

    \b
    Examples:
      gpuqueue resume 3
      gpuqueue resume --all
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Changing() as client:
        resumed = client.resume(*devices, all_here=all_here)
    closed = [each for each in resumed if each.drains]
    for each in resumed:
        if each not in closed:
            click.echo(f"{_name(each)}: takes jobs again")
    for each in closed:
        why = "its machine is going down, and gpuqueue up takes that back"
        click.echo(f"gpuqueue: {_name(each)} still takes no new job: {why}", err=True)
    sys.exit(Refused.exit_code if closed else 0)


def jobs_on(found: Iterable[DeviceStatus]) -> Iterator[int]:
    """Yield the jobs that hold the devices *found*, and those for which they are kept."""
    for each in found:
        yield from each.jobs
        if each.kept is not None:
            yield each.kept.job_id


def _going_on(jobs: Sequence[int], called: Mapping[int, str]) -> str:
    names = ", ".join(called.get(each, str(each)) for each in jobs)
    return (f"; jobs {names} go on" if len(jobs) > 1 else f"; job {names} goes on") if jobs else ""


def _name(each: DeviceStatus) -> str:
    return f"device {each.device.index} of {each.host} ({plain(each.device.uuid)})"


def drain_lines(found: Sequence[DeviceStatus]) -> Iterator[str]:
    """Yield a line for each thing that was said against a device: since when, by whom and why."""
    for each in found:
        for said in each.drains:
            since = f" since {render.when(said.at)}" if said.at else ""
            by = f" by {plain(said.by)}" if said.by else ""
            why = f": {plain(said.why)}" if said.why else ""
            yield f"drained: {each.host} device {each.device.index}{since}{by}{why}"


def kept_lines(found: Sequence[DeviceStatus], called: Mapping[int, str]) -> Iterator[str]:
    """Yield a line for each device that is kept for a job: for which, and since when; *called* as in condition."""
    for each in found:
        if each.kept is not None:
            since = f" since {render.when(each.kept.since)}" if each.kept.since else ""
            where = f"{plain(each.host)} device {render.device_label(each.device)}"
            name = called.get(each.kept.job_id, str(each.kept.job_id))
            yield f"kept: {where}{since} for job {name}, see gpuqueue why {name}"


def drain_plain(said: Drain) -> dict[str, str | None]:
    """Return *said* as plain values."""
    at = said.at.isoformat(timespec="milliseconds") if said.at else None
    return {"origin": said.origin.value, "why": said.why, "by": said.by, "at": at}


def condition(device: DeviceStatus, beat_s: float, called: Mapping[int, str] | None = None) -> str:
    """Return in a few words whether a device takes jobs; *called* is what people call some of them."""
    if device.drains:
        return f"drained {plain(str(device.drains[0]))}"
    if device.seen_s_ago > SILENT_BEATS * beat_s:
        return f"silent for {device.seen_s_ago:.0f}s"
    if device.trouble is not None:
        return f"closed: {plain(device.trouble)}"
    kept = device.kept
    return "ready" if kept is None else f"kept for job {(called or {}).get(kept.job_id, str(kept.job_id))}"
