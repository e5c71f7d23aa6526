"""The ``burst`` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output.render import Column, table_of, terminal_width
from gpuqueue.client import Client
from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.lazy.imports import later
from gpuqueue.model.burst import ENGINES, PilotSettings
from gpuqueue.model.lending import TOKEN_NAME
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_duration, parse_duration
from gpuqueue.words import values

if TYPE_CHECKING:
    from gpuqueue.pilots import fleet
    from gpuqueue.pilots.fleet import Pilot, PilotRequest, Pilots
else:
    fleet = later("gpuqueue.pilots.fleet")

#: How long ``burst list`` waits until an ended pilot has been silent for long enough, in seconds.
SETTLE_S = 30.0
#: The most jobs that ``burst why`` lists.
MAX_SHOWN = 20


@click.group()
def burst() -> None:
    """Borrow GPUs from a cluster for some hours: workers of this site in allocations of Slurm or Kubernetes.

    Run it on the machine of the service, as an admin. The table [burst.slurm] or [burst.kubernetes] of the settings
    file says how to reach the cluster, and where its machines find the service.

    \b
    Examples:
      gpuqueue burst list
    """  # noqa: D301 - \b is click's mark for lines to keep


def _request_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a pilot to a command, which are the same for all engines."""
    gpus, hours, count = click.IntRange(1, 64), click.FloatRange(0.1, 720), click.IntRange(1, 100)
    options = (
        click.option("--gpus", type=gpus, metavar="N", required=True, help="GPUs of each pilot, on one machine."),
        click.option("--hours", type=hours, metavar="H", required=True, help="How long each pilot lasts."),
        click.option("--pool", metavar="NAME", default="", help="Pool of its devices. Default: that of the settings."),
        click.option("--count", type=count, metavar="N", default=1, show_default=True, help="How many pilots."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@burst.command()
@_request_options
def slurm(gpus: int, hours: float, pool: str, count: int) -> None:
    """Ask Slurm for allocations in which workers of this site serve the GPUs.

    A pilot takes jobs that end before it does. It gives its allocation back at its end, or when it was idle for long.

    \b
    Examples:
      gpuqueue burst slurm --gpus 2 --hours 8
      gpuqueue burst slurm --gpus 1 --hours 4 --count 3 --pool cluster
    """  # noqa: D301 - \b is click's mark for lines to keep
    _start("slurm", fleet.PilotRequest(gpus=gpus, hours=hours, pool=pool), count)


@burst.command()
@_request_options
def kubernetes(gpus: int, hours: float, pool: str, count: int) -> None:
    """Ask Kubernetes for Jobs in which workers of this site serve the GPUs.

    The image of the settings must have gpuqueue, and all that jobs import. A pilot takes jobs that end before it does.
    It gives its GPUs back at its end, or when it was idle for long.

    \b
    Examples:
      gpuqueue burst kubernetes --gpus 2 --hours 8
    """  # noqa: D301 - \b is click's mark for lines to keep
    _start("kubernetes", fleet.PilotRequest(gpus=gpus, hours=hours, pool=pool), count)


def _start(engine: str, request: PilotRequest, count: int) -> None:
    """Ask *engine* for *count* pilots, and print their hosts."""
    with Client() as client:
        pilots = _pilots(client, engine)
        for _ in range(count):
            made = pilots.start(engine, request)
            print_message(
                "gpuqueue", f"pilot {made.host} waits in {ENGINES[engine]} as job {made.ref}: see gpuqueue burst list"
            )
            click.echo(made.host)


@burst.command("list")
@json_option
def list_pilots(*, as_json: bool) -> None:
    """List the pilots, and tidy up after those that have ended.

    \b
    Examples:
      gpuqueue burst list
      gpuqueue burst list --json
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        pilots = _pilots(client)
        found = pilots.list()
        requeued = pilots.settle(found, wait_s=SETTLE_S)
    for job_id, state in requeued.items():
        print_message("gpuqueue", f"job {job_id} was on a pilot that has ended: it is {state}")
    if as_json:
        print_json([_shown(pilot) for pilot in found])
    elif found:
        click.echo(table_of(COLUMNS, found, terminal_width()))
    else:
        click.echo("no pilots: see gpuqueue burst --help")


@burst.command("why")
@click.argument("engine", metavar="ENGINE", type=click.Choice([*ENGINES]), required=False)
def why_command(engine: str | None) -> None:
    """Explain whether a pilot of ENGINE is asked for by the rule of the settings, and which jobs count.

    Without ENGINE it is the first one that the settings have a table of.

    \b
    Examples:
      gpuqueue burst why
      gpuqueue burst why kubernetes
    """  # noqa: D301 - \b is click's mark for lines to keep
    from gpuqueue.clock import SystemClock  # noqa: PLC0415 - only here
    from gpuqueue.pilots.rule import decision_of  # noqa: PLC0415 - only here

    with Client() as client:
        engine = engine or next(iter(client.settings.burst), "slurm")
        settings = client.settings.burst.get(engine, PilotSettings())
        pilots = _pilots(client).list(engine)
        found = decision_of(client, settings, pilots, client.access.tokens(everybody=True), SystemClock())
    answer = "a pilot is asked for with the next turn" if found.request is not None else "no pilot is asked for"
    click.echo(f"{answer}: {found.why}")
    for each in found.counted[:MAX_SHOWN]:
        counts = "counts" if each.why_not is None else f"does not count: {each.why_not}"
        click.echo(f"job {each.job.label} ({plain(each.job.spec.name)}, {plain(each.job.spec.account.name)}) {counts}")
    if len(found.counted) > MAX_SHOWN:
        click.echo(f"… and {len(found.counted) - MAX_SHOWN} more jobs")


@burst.command()
@click.argument("names", metavar="PILOT…", nargs=-1)
@click.option("--all", "everyone", is_flag=True, help="All pilots.")
@click.option("--now", is_flag=True, help="Do not let running pilots hand back: they end at once.")
def cancel(names: tuple[str, ...], *, everyone: bool, now: bool) -> None:
    """Give pilots up. A running one ends its runs in order, and their jobs are queued again.

    PILOT is the name of its host, or its id in the list.

    \b
    Examples:
      gpuqueue burst cancel slurm-k3v9m2xqab
      gpuqueue burst cancel --all --now
    """  # noqa: D301 - \b is click's mark for lines to keep
    if bool(names) == everyone:
        raise BadRequest("name pilots, or give --all")
    failed = 0
    with Client() as client:
        pilots = _pilots(client)
        found = pilots.list()
        unknown = [name for name in names if not any(name in _names(pilot) for pilot in found)]
        if unknown:
            raise BadRequest(f"{plain(unknown[0])} is no pilot: gpuqueue burst list has them")
        for pilot in found:
            if not everyone and not _names(pilot) & {*names}:
                continue
            try:
                pilots.cancel(pilot, now=now)
            except GpuQueueError as error:
                print_message("gpuqueue", str(error))
                failed = error.exit_code
            else:
                click.echo(f"{pilot.host}: {'given up' if now or pilot.status.node is None else 'hands back'}")
    sys.exit(failed)


@burst.command(hidden=True)
@click.option("--place", type=click.Path(path_type=Path), required=True)
@click.option("--url", required=True)
@click.option("--seconds", type=float, required=True)
@click.option("--devices", default="gpu")
@click.option("--pool", default="")
@click.option("--idle", default="10m")
@click.option("--ca", is_flag=True)
@click.option("--jobs-of-all", is_flag=True)
def serve(
    place: Path, url: str, seconds: float, devices: str, pool: str, idle: str, *, ca: bool, jobs_of_all: bool
) -> None:
    """Serve jobs in an allocation, on its machine. The script of a pilot runs this.

    \b
    Examples:
      gpuqueue burst serve --place DIRECTORY --url https://gpu:8443 --seconds 60
    """  # noqa: D301 - \b is click's mark for lines to keep
    from gpuqueue.pilots.node import NodePilot, PilotWork  # noqa: PLC0415 - only on a node

    work = PilotWork(
        place=place,
        url=url,
        duration_s=seconds,
        devices=devices,
        pool=pool,
        idle_s=parse_duration(idle),
        has_ca=ca,
        jobs_of_all=jobs_of_all,
    )
    sys.exit(NodePilot(work, os.environ).serve())


def _pilots(client: Client, engine: str | None = None) -> Pilots:
    """Return the pilots of this site. Without a table of *engine*, its defaults are used."""
    known = dict(client.settings.burst)
    for name in () if engine is None else (engine,):
        known.setdefault(name, PilotSettings())
    known = known or {"slurm": PilotSettings()}

    def warn(text: str) -> None:
        print_message("gpuqueue: warning", text)

    return fleet.Pilots(client, fleet.engines_of(known), known, warn=warn)


def _names(pilot: Pilot) -> set[str]:
    return {pilot.host, *([] if pilot.ref is None else [pilot.ref.id])}


def _shown(pilot: Pilot) -> dict[str, object]:
    status = pilot.status
    return {
        "host": pilot.host,
        "engine": pilot.engine,
        "ref": None if pilot.ref is None else pilot.ref.id,
        "phase": str(status.phase),
        "word": status.word,
        "node": status.node,
        "left_s": status.left_s,
        "name": pilot.token.name.removeprefix(TOKEN_NAME),
        "made_at": pilot.token.made_at,
        "made_by": pilot.token.made_by,
    }


def _left(pilot: Pilot) -> str:
    return "-" if pilot.status.left_s is None else f"in {format_duration(pilot.status.left_s)}"


#: Columns of the list, from left to right.
COLUMNS: Sequence[Column[Pilot]] = (
    Column(head="PILOT", cell=lambda each, _: each.host),
    Column(head="SIZE", cell=lambda each, _: plain(each.token.name.removeprefix(TOKEN_NAME)), keep=1),
    Column(head="ID", cell=lambda each, _: "-" if each.ref is None else each.ref.id),
    Column(head="STATE", cell=lambda each, _: str(each.status.phase)),
    Column(head="NODE", cell=lambda each, _: each.status.node or "-"),
    Column(head="ENDS", cell=lambda each, _: _left(each)),
    Column(head="MADE", cell=lambda each, _: values.when(each.token.made_at), keep=0),
    Column(head="WHY", cell=lambda each, _: plain(each.status.word), least=10, narrows=0),
)
