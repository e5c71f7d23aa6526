"""The ``cron`` command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import click

from gpuqueue.cli.options.job_request import Submitting, array_options, job_options, naming_files, note, request_for
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output.render import Column, table_of, terminal_width
from gpuqueue.client import Client
from gpuqueue.console import print_message
from gpuqueue.model.repeating import PAUSED, RepeatingJob
from gpuqueue.text.sanitize import plain
from gpuqueue.words import values

#: After which time a repeating job whose time has come is overdue, in seconds: a submit takes less.
OVERDUE_S = 60.0
#: Characters of the fields of cron.
_CHARACTERS = frozenset("0123456789*/,-")


class Adding(Submitting):
    """The command that adds. It says so if the times are not in quotes: the shell has replaced their stars then."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before the first ``--``.

        Raises:
            click.UsageError: The times are several words, or as in :class:`Submitting`.

        """
        if len(args) > 1 and all(word and _CHARACTERS.issuperset(word) for word in args[:2]):
            raise click.UsageError("Put the times in quotes: gpuqueue cron add '0 3 * * *' train.py", ctx)
        return super().parse_args(ctx, args)


@click.group()
def cron() -> None:
    """Submit a job again and again, at set times, as cron does.

    The service submits it for you, or the services that gpuqueue up has started.

    \b
    Examples:
      gpuqueue cron add "0 3 * * *" nightly.py
      gpuqueue cron list
      gpuqueue cron remove nightly.py
    """  # noqa: D301 - \b is click's mark for lines to keep


@cron.command(cls=Adding)
@click.argument("times")
@job_options
@array_options
@click.option("--tz", "zone", metavar="ZONE", help="Time zone of TIMES: Europe/Berlin, UTC. Default: the service's.")
@click.option("--overlap", is_flag=True, help="Submit a job also while the last one waits or runs.")
@click.option("--catch-up", is_flag=True, help="After times that were missed because nothing ran, submit one job late.")
@click.pass_context
def add(ctx: click.Context, /, **options: Any) -> None:
    """Add a repeating job. The options are those of submit, and the job has your environment of now.

    TIMES are minute, hour, day, month and weekday, in quotes; or @hourly, @daily, @weekly, @monthly, @yearly. The name
    of the job is the name of the repeating job.

    \b
    Examples:
      gpuqueue cron add "0 3 * * *" nightly.py --mem 6G
      gpuqueue cron add "0 8-18 * * mon-fri" --device cpu --mem 1G -- ./check.sh
      gpuqueue cron add @weekly --tz Europe/Berlin train.py --mem 6G
      gpuqueue cron add @daily train.py --sweep seed=0..4 -- --seed {seed}
    """  # noqa: D301 - \b is click's mark for lines to keep
    rules = {name: options.pop(name) for name in ("zone", "overlap", "catch_up")}
    times = options.pop("times")
    with Client() as client, naming_files(options):
        made = client.cron.add(times, request_for(client, ctx.obj, options), note=note, **rules)
    click.echo(f"{plain(made.name)}: {made.times} ({made.zone}), {_next_in_words(made)}")


@cron.command("list")
@click.option("--user", metavar="NAME", help="The repeating jobs of another account.")
@click.option("--all", "everybody", is_flag=True, help="The repeating jobs of all accounts.")
@json_option
def list_repeating(user: str | None, *, everybody: bool, as_json: bool) -> None:
    """List your repeating jobs: the next time, the last job, and the times that were missed, with why.

    \b
    Examples:
      gpuqueue cron list
      gpuqueue cron list --all --json
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        found = client.cron.list(user, everybody=everybody)
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no repeating jobs: see gpuqueue cron add --help")
        return
    columns = COLUMNS if everybody or user is not None else tuple(each for each in COLUMNS if each.head != "USER")
    click.echo(table_of(columns, found, terminal_width()))
    for each in found:
        for line in _lines(each):
            click.echo(line)
    overdue = datetime.now(timezone.utc) - timedelta(seconds=OVERDUE_S)
    if any(each.next_at is not None and each.next_at < overdue for each in found):
        print_message("gpuqueue", "nothing submits repeating jobs now: gpuqueue up, or gpuqueue serve, does")


def _remove(client: Client, name: str, user: str | None) -> str:
    removed = client.cron.remove(name, user=user)
    if removed.next_at is not None and removed.next_at <= datetime.now(timezone.utc):
        return f"removed; no job was submitted for {values.when(removed.next_at)}"
    last = "" if removed.last_state is None or removed.last_state.is_end else f"; {_last_job(removed)} goes on"
    return f"removed{last}"


def _run(client: Client, name: str, user: str | None) -> str:
    client.cron.run(name, user=user)
    return "due now, gpuqueue cron list shows its job"


#: The commands that take names of repeating jobs: what each does, and its answer for a name of the account ``user``.
_BY_NAME: Mapping[str, tuple[str, Callable[[Client, str, str | None], str]]] = {
    "remove": ("Remove repeating jobs. Their jobs that wait or run go on.", _remove),
    "pause": (
        "Pause repeating jobs: their times pass, and nothing is submitted.",
        lambda client, name, user: _next_in_words(client.cron.pause(name, user=user)),
    ),
    "resume": (
        "Let repeating jobs go on that are paused or have stopped, by your access token of now if you use one.",
        lambda client, name, user: _next_in_words(client.cron.resume(name, user=user)),
    ),
    "run": (
        "Let the time of repeating jobs be now. It is missed if the last job waits or runs, as any other time.",
        _run,
    ),
}


def _add_command(command: str, does: str, act: Callable[[Client, str, str | None], str]) -> None:
    """Add the command of the group that calls *act* for each name, and prints what it returns."""

    @cron.command(command, help=f"{does}\n\n\b\nExamples:\n  gpuqueue cron {command} nightly.py")
    @click.argument("names", metavar="NAME…", nargs=-1, required=True)
    @click.option("--user", metavar="NAME", help="That of another account. Only for admins.")
    def by_name(names: tuple[str, ...], user: str | None) -> None:
        with Client() as client:
            for name in names:
                click.echo(f"{plain(name)}: {act(client, name, user)}")


for _command, _entry in _BY_NAME.items():
    _add_command(_command, *_entry)


def _next_in_words(each: RepeatingJob) -> str:
    if each.stopped is None:
        return f"next at {values.when(each.next_at)}"
    return each.stopped if each.stopped == PAUSED else f"stopped: {plain(each.stopped)}"


def _last_job(each: RepeatingJob) -> str:
    return f"job {each.last_job_id}"


def _lines(each: RepeatingJob) -> list[str]:
    """Return what the table does not say: why *each* has stopped, and which times it has missed."""
    lines, name = [], plain(each.name)
    if each.stopped not in {None, PAUSED}:
        lines.append(f"{name} has stopped: {plain(str(each.stopped))}")
    if each.missed:
        times = "1 time" if each.missed == 1 else f"{each.missed} times, the last"
        why = f": {plain(each.missed_why)}" if each.missed_why else ""
        lines.append(f"{name} missed {times} at {values.when(each.missed_at)}{why}")
    return lines


def _next(each: RepeatingJob) -> str:
    if each.stopped is None:
        return values.when(each.next_at)
    return each.stopped if each.stopped == PAUSED else "stopped"


#: Columns of the list, from left to right.
COLUMNS: tuple[Column[RepeatingJob], ...] = (
    Column(head="NAME", cell=lambda each, _: plain(each.name), least=6, narrows=0),
    Column(head="USER", cell=lambda each, _: plain(each.user), least=6, narrows=1),
    Column(head="TIMES", cell=lambda each, _: each.times),
    Column(head="ZONE", cell=lambda each, _: each.zone, keep=1),
    Column(head="NEXT", cell=lambda each, _: _next(each)),
    Column(head="LAST", cell=lambda each, _: values.when(each.last_at) if each.last_at else "-", keep=2),
    Column(head="JOB", cell=lambda each, _: str(each.last_job_id or "-"), right=True),
    Column(head="STATE", cell=lambda each, _: str(each.last_state or "-")),
    Column(head="MISSED", cell=lambda each, _: str(each.missed), right=True, keep=0),
)
