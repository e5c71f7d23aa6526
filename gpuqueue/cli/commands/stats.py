"""The ``stats`` command."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from gpuqueue.cli.completion.candidates import users
from gpuqueue.cli.options.count import Count
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.options.once import Once
from gpuqueue.cli.output.render import Column, hanging, table_of, terminal_width
from gpuqueue.cli.plots import charts, image_file
from gpuqueue.client import Client
from gpuqueue.codec.csv_text import csv_of_statistics
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.lazy.imports import later
from gpuqueue.model.statistics import By, Course, Figures, Statistics, Stretch, light_users
from gpuqueue.model.times import moment, ordered
from gpuqueue.text.sanitize import short
from gpuqueue.text.units import GIB, format_bytes, format_duration
from gpuqueue.words import values

if TYPE_CHECKING:
    from datetime import datetime

    from gpuqueue.cli.follow import updated_line
    from gpuqueue.cli.output import learning_table, order_table
    from gpuqueue.model.learning_report import LearningReport
    from gpuqueue.simulator import comparison, own
else:  # only for --learning and --order
    comparison = later("gpuqueue.simulator.comparison")
    learning_table = later("gpuqueue.cli.output.learning_table")
    order_table = later("gpuqueue.cli.output.order_table")
    own = later("gpuqueue.simulator.own")
    updated_line = later("gpuqueue.cli.follow.updated_line")

#: A group's label and its figures.
_Line: TypeAlias = tuple[str, Figures]

#: Steps of a chart over time. A step of a month's chart is half a day.
STEPS = 60
#: Most times that a chart over time is narrowed. Each time cuts the period to less than half.
CLOSER = 6


def _size(size_bytes: float | None) -> str:
    return format_bytes(None if size_bytes is None else round(size_bytes))


def _figure(head: str, keep: int | None, shown: Callable[[Figures], str]) -> Column[_Line]:
    return Column(head=head, cell=lambda line, _: shown(line[1]), right=True, keep=keep)


_COLUMNS = (
    _figure("JOBS", 11, lambda each: str(each.jobs)),
    _figure("GPU H", None, lambda each: values.hours(each.gpu_s)),
    _figure("CPU H", 2, lambda each: values.hours(each.cpu_s)),
    _figure("GIB H", 3, lambda each: values.hours(each.asked_byte_s / GIB)),
    _figure("BUSY", 5, lambda each: values.percent(each.utilisation)),
    _figure("ASKED", 6, lambda each: _size(each.asked_bytes)),
    _figure("PEAK", 7, lambda each: _size(each.peak_bytes)),
    _figure("USED", 8, lambda each: values.percent(each.used)),
    _figure("WAIT", 9, lambda each: format_duration(each.wait_median_s)),
    _figure("95 %", 1, lambda each: format_duration(each.wait_p95_s)),
    _figure("FAILED", 10, lambda each: values.percent(each.failure_rate)),
    _figure("OOM", 4, lambda each: values.percent(each.out_of_memory_rate)),
)


@click.command(cls=Once)
@click.option("--by", type=click.Choice([str(by) for by in By]), default="user", show_default=True, help="Grouping.")
@click.option(
    "--since", metavar="WHEN", default="30d", show_default=True, help="Start of the period: 7d, 12h, 2026-11-01."
)
@click.option("--until", metavar="WHEN", help="End of the period. Default: now.")
@click.option("-u", "--user", metavar="NAME", help="Only this user's jobs.", shell_complete=users)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, one line per group.")
@click.option("--learning", is_flag=True, help="Show how learned memory did, beside what was asked and simple rules.")
@click.option("--order", is_flag=True, help="Show waits by size and usage, and what first-fit would have given.")
@click.option(
    "--jobs",
    "most_jobs",
    type=Count(0),
    metavar="N",
    help="With --order: replay the newest N jobs, 0 for none. Default: 500, within about a minute.",
)
@image_file.picture_option("charts of usage, memory, waits and devices")
def stats(
    by: str,
    since: str,
    until: str | None,
    user: str | None,
    *,
    as_json: bool,
    as_csv: bool,
    learning: bool,
    plot: str | None,
    **chosen: Any,
) -> None:
    """Show GPU-hours, requested and used memory, waits and failures of a period.

    \b
    Examples:
      gpuqueue stats
      gpuqueue stats --by day --since 7d
      gpuqueue stats --by device --csv > devices.csv
      gpuqueue stats --plot lab.png
      gpuqueue stats --learning --user ada
      gpuqueue stats --order --since 7d
    """  # noqa: D301 - \b is click's mark for lines to keep
    order, most_jobs = chosen["order"], chosen["most_jobs"]
    if as_json + as_csv + (plot is not None) > 1:
        raise BadRequest("--json, --csv and --plot exclude each other: choose one")
    _check_report(learning=learning, order=order, others=by != "user" or as_csv or plot is not None, user=user)
    if most_jobs is not None and not order:
        raise BadRequest("--jobs says how many jobs --order replays: add --order")
    period = {"since": moment("since", since), "until": moment("until", until)}
    ordered(**period)
    with Client() as client:
        if learning:
            _show_learning(client.history.learning(**period, user=user), as_json=as_json)
            return
        if order:
            _show_order(client, period, most_jobs, as_json=as_json)
            return
        reported = client.history.stats(by, **period, user=user)
        if plot is not None:
            if not reported.total.runs:
                raise Refused(f"no job{f' of {user}' if user else ''} ran in this time: there is nothing to draw")
            _plot(client, reported, plot, user)
            return
    if as_json:
        print_json(reported)
    elif as_csv:
        click.echo(csv_of_statistics(reported), nl=False)
    elif reported.total.runs:
        click.echo(_table(reported, terminal_width()))
    else:
        click.echo("nothing ran in this time", err=True)


def _check_report(*, learning: bool, order: bool, others: bool, user: str | None) -> None:
    """Refuse options that a report other than the usual table has no use for.

    Raises:
        BadRequest: there is one.

    """
    if order and (learning or others or user is not None):
        raise BadRequest("--order excludes --by, --user, --csv, --plot and --learning: use it with --since and --json")
    if learning and others:
        raise BadRequest("--learning excludes --by, --csv and --plot: use it with --since, --until, --user and --json")


def _show_learning(report: LearningReport, *, as_json: bool) -> None:
    """Print a replay of learned memory as JSON or as a table."""
    if as_json:
        print_json(report)
    elif report.repeats:
        click.echo(learning_table.learning_table(report, terminal_width()))
    else:
        click.echo(learning_table.counted(report))


def _show_order(client: Client, period: dict[str, datetime | None], most_jobs: int | None, *, as_json: bool) -> None:
    """Print the waits of a period by size and usage, and then those of a replay of its newest jobs.

    Raises:
        Refused: the caller may not see the jobs that would be replayed. The waits are printed before.

    """
    by_size, by_user = (client.history.stats(by, user=None, **period) for by in (By.SIZE, By.USER))
    light = light_users({each.key: each.figures.gpu_s for each in by_user.groups if each.figures.gpu_s})
    if not by_size.total.runs and not as_json:
        click.echo("nothing ran in this time", err=True)
        return
    if not as_json:
        notes = [f"{values.when(by_size.since)} to {values.when(by_size.until)}.", order_table.LEGEND, *_idle(by_size)]
        click.echo("\n".join([order_table.measured(by_size, by_user, light), "", *notes]))
    replay = None
    if most_jobs != 0 and by_size.total.ended:
        history = own.own_history(client, most_jobs or own.USUAL_JOBS, **period)
        knobs, line = own.knobs_of(client.settings), updated_line.ReplayLine()
        fitting, *_ = comparison.fit(history.trace.requests, history.site, knobs)
        most_s = math.inf if most_jobs else own.MOST_S
        replay = comparison.beside_first_fit(fitting, history.site, knobs, light=light, seen=line.seen, most_s=most_s)
        line.clear()
    if as_json:
        print_json({"by_size": by_size, "by_user": by_user, "light_users": sorted(light), "replay": replay})
    elif replay is not None:
        click.echo(f"\n{order_table.replayed(replay, own.in_words(history.site))}")


def _idle(reported: Statistics) -> list[str]:
    """Return for how long devices were idle because they were reserved, if they were."""
    if not reported.reserved_idle_device_s:
        return []
    idle = values.hours(reported.reserved_idle_device_s)
    return [f"Since the store was opened, devices were idle for {idle} h because they were reserved."]


def _plot(client: Client, reported: Statistics, path: str, user: str | None) -> None:
    people = client.history.stats(By.USER, since=reported.since, until=reported.until, user=user)
    course = course_of(client, reported, user)
    period = f"{values.when(reported.since)[:16]} to {values.when(reported.until)[:16]}"
    title = f"gpuqueue, {period}" + (f", {user}" if user else "")
    image_file.write(path, charts.overview(people, course, title))


def course_of(client: Client, reported: Statistics, user: str | None) -> Course:
    """Return usage over time, from shortly before the first run, so that an empty period takes no space."""
    since = reported.since
    for _ in range(CLOSER):
        course = client.history.course(since=since, until=reported.until, steps=STEPS, user=user)
        first = next((place for place, step in enumerate(course.steps) if step.runs), 0)
        if first <= STEPS // 2:
            break
        since = course.bounds[first - 1]
    return course


def _table(reported: Statistics, width: int | None) -> str:
    """Return the groups as a table with the total in the last line, and notes below it.

    *width* is that of the terminal in columns; None means a pipe, and nothing is omitted.
    """
    # Groups without runs are omitted: many rows of dashes would hide the others.
    lines = [(short(group.label), group.figures) for group in reported.groups if group.figures.runs]
    if len(lines) > 1:
        lines.append(("all", reported.total))
    label: Column[_Line] = Column(head=str(reported.by).upper(), cell=lambda line, _: line[0], least=8, narrows=1)
    figures = [column for column in _COLUMNS if column.head != "CPU H" or reported.total.cpu_s]
    notes = [row for note in _notes(reported) for row in hanging(note, width)]
    return "\n".join([table_of([label, *figures], lines, width), "", *notes])


def _notes(reported: Statistics) -> list[str]:
    total = reported.total
    period = f"{values.when(reported.since)} to {values.when(reported.until)}"
    means = "ASKED and PEAK are means of a device over time"
    if total.measured is not None and total.measured < 0.995:  # noqa: PLR2004 - rounds to 100 %
        known = values.percent(total.measured)
        part = f"PEAK is known for {known} of the time: USED is its share of what was asked then."
        notes = [f"{period}.", f"{means}.", part]
    else:
        notes = [f"{period}.", f"{means}; USED is their share."]
    if total.held_s > 1.01 * (total.gpu_s + total.cpu_s):  # else no card was shared
        notes.append("GPU H is the time of the cards: jobs that share one share its time by their allocated memory.")
    if reported.stretch is not None:
        notes.append(_stretch(reported.stretch))
    notes += _idle(reported)
    if total.ended < total.runs:
        notes.append(f"{total.runs - total.ended} of {total.runs} runs ended later or still run.")
    return notes


def _stretch(found: Stretch) -> str:
    runs = f"{found.shared_runs} run{'s' if found.shared_runs > 1 else ''}"
    alone = f"{found.alone_runs} run{'s' if found.alone_runs > 1 else ''}"
    which = "of the same command" if found.commands == 1 else f"of the same {found.commands} commands"
    return f"{runs} beside others on a device took {found.factor:.2f} times as long as {alone} {which} alone."
