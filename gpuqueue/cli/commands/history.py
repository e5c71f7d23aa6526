"""The ``history`` command, and the hint which filter matches nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from gpuqueue.cli.completion.candidates import device_names, hosts, listed, models, one_of, tags, users
from gpuqueue.cli.options.add import with_options
from gpuqueue.cli.options.count import Count
from gpuqueue.cli.options.job_id import JobNameType
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.options.once import Once
from gpuqueue.cli.output import history_columns as all_columns
from gpuqueue.cli.output.history_columns import COLUMNS, USUAL, chosen
from gpuqueue.cli.output.render import terminal_width
from gpuqueue.client import Client
from gpuqueue.client.reads import id_of
from gpuqueue.codec.csv_text import csv_text
from gpuqueue.codec.wire import to_plain
from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest, JobNotFound
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.array import MOST_MEMBERS, Member
from gpuqueue.model.history_query import FoldedRow, HistoryQuery, Sort
from gpuqueue.model.job import JobState
from gpuqueue.model.job_ref import MAX_ID, JobName
from gpuqueue.model.run import VALUES, EndingKind, Record
from gpuqueue.text.sanitize import brief, short

#: The columns of ``--csv``.
CSV_COLUMNS = tuple(VALUES)

_ID = Count(most=MAX_ID)
_GPUS = "gpuqueue gpus lists all devices"
_FIGURES = "gpuqueue history --sort {} shows the nearest ones"
#: Filter -> message if it alone matches no job, and what to try. The filters with the most common errors come first.
_FILTERS: Mapping[str, tuple[str, str]] = {
    "device": ("none ran on a device {}", _GPUS),
    "host": ("none ran on a host {}", _GPUS),
    "model": ("none ran on a device with {} in its name", _GPUS),
    "user": ("none is of a user {}", "gpuqueue stats lists the users with recent runs"),
    "name": ("none is called {}", "A pattern finds more: --name 'train*'"),
    "tags": ("none has the tag {}", "gpuqueue history --columns id,name,tags shows which there are"),
    "array": (
        "none is a member of an array {}",
        "gpuqueue history --members --columns id,name,array shows which there are",
    ),
    "states": ("none is {}", "Leave out --state to see their states"),
    "endings": ("none has the ending {}", "Leave out --ending to see how they ended"),
    "exit_code": ("none ended with exit code {}", "gpuqueue history --columns id,ending,exit shows how they ended"),
    "text": ("none has {} in its command or its note", "Search for a shorter part"),
    "min_peak": ("none took {} or more, as far as it is known", _FIGURES.format("peak")),
    "min_duration": ("none took {} or longer, as far as it is known", _FIGURES.format("duration")),
    "max_duration": ("none took {} or less, as far as it is known", _FIGURES.format("duration --reverse")),
    "since": ("none was submitted since {}", "gpuqueue history --limit 1 shows the last one"),
    "until": ("none was submitted before {}", "gpuqueue history --reverse --limit 1 shows the first one"),
    "before_id": ("none is older than job {}", "gpuqueue history --reverse --limit 1 shows the first one"),
}
#: Values of an option that was not given.
_NOTHING: tuple[Any, ...] = (None, (), [])

#: Characters that shell quoting changes.
_QUOTED = frozenset(" \t\n'\"\\")


class _JobId(JobNameType):
    """The id of a job, or the name of a member, as the id in the history."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # type: ignore[override]
        """Return the id of the job that the user named."""
        return id_of(JobName.parse(super().convert(value, param, ctx)))


_JOB = _JobId()
#: Most rows that are searched for the name of a parameter that no row of the page has.
MAX_SEARCHED = 1000
#: Largest ``--limit``.
_MOST = 10**9
_WHICH = (
    click.option("-u", "--user", metavar="NAME", help="Only this user's jobs.", shell_complete=users),
    click.option("-n", "--name", help="Only jobs of this name or pattern: train, 'train*'."),
    click.option(
        "-s",
        "--state",
        "states",
        multiple=True,
        metavar="STATE",
        type=click.Choice([str(s) for s in JobState]),
        help=f"Only jobs in this state: {', '.join(JobState)}.",
    ),
    click.option(
        "--ending",
        "endings",
        multiple=True,
        metavar="ENDING",
        type=click.Choice([str(e) for e in EndingKind]),
        help=f"Only jobs with this ending: {', '.join(EndingKind)}.",
    ),
    click.option(
        "--exit-code",
        type=click.IntRange(0, 255),
        metavar="N",
        help="Only jobs with this exit code; 128 + n: also signal n; 124: also timed out; 130: also cancelled.",
    ),
    click.option("--array", type=_ID, metavar="ID", help="Only the members of this array."),
    click.option(
        "--tag", "tags", multiple=True, metavar="WORD", help="Only jobs with this tag. Repeatable.", shell_complete=tags
    ),
    click.option(
        "-d",
        "--device",
        metavar="WHICH",
        help="Only jobs on this device: HOST:INDEX, an index on this host, or a UUID (or its start).",
        shell_complete=device_names,
    ),
    click.option(
        "--model",
        metavar="TEXT",
        help="Only jobs on devices with this text in their name: A100.",
        shell_complete=models,
    ),
    click.option("--host", help="Only jobs on this host.", shell_complete=hosts),
    click.option("--since", metavar="WHEN", help="Only jobs submitted since: 7d, 12h, 2026-11-01, 2026-11-01T09:00."),
    click.option("--until", metavar="WHEN", help="Only jobs submitted before."),
    click.option("--min-peak", metavar="SIZE", help="Only jobs with this peak memory or more."),
    click.option("--min-duration", metavar="TIME", help="Only jobs that ran this long or longer."),
    click.option("--max-duration", metavar="TIME", help="Only jobs that ran no longer than this."),
    click.option(
        "-c",
        "--command",
        "text",
        metavar="TEXT",
        help="Only jobs with this text in the command or the note. Ignores case.",
    ),
)


@click.command(cls=Once)
@with_options(_WHICH)
@click.option(
    "--sort",
    metavar="KEY",
    default="id",
    show_default=True,
    help=f"Order, largest or newest first: {', '.join(Sort)}, or a metric; with --array also a value of its sweep.",
    shell_complete=one_of(Sort),
)
@click.option("-r", "--reverse", is_flag=True, help="Reverse the order.")
@click.option("-l", "--limit", type=Count(most=_MOST), default=50, show_default=True, help="Maximum number of jobs.")
@click.option("--after", "after_id", type=_JOB, metavar="ID", help="Continue after this job: the next page.")
@click.option("--before", "before_id", type=_JOB, metavar="ID", help="Only jobs older than this one.")
@click.option("--members", is_flag=True, help="List each member of an array, not one row for the array.")
@click.option("--params", is_flag=True, help="Add a column for each parameter. Lists the members.")
@click.option(
    "--columns",
    metavar="LIST",
    help="Columns of the table or the CSV: id,user,peak; parameters and metrics too: id,lr,val_acc.",
    shell_complete=listed(one_of(COLUMNS)),
)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, one line per job.")
def history(*, limit: int, **asked: Any) -> None:
    """List past and present jobs, newest first: user, device, duration and peak memory.

    An array is one row with the number of its matching members in each state, unless --members, --params, --array,
    --sort, --csv or --json lists each member. A narrow terminal omits columns, but never those of --columns. A pipe
    gets all columns.

    \b
    Examples:
      gpuqueue history --since 7d
      gpuqueue history --user ada --state failed --sort peak
      gpuqueue history --array 17 --columns id,lr,seed,state,peak
      gpuqueue history --sort val_acc --columns id,lr,val_acc --limit 10
      gpuqueue history --tag baseline --columns id,name,tags,note
      gpuqueue history --ending out_of_memory --columns id,user,name,mem,peak
      gpuqueue history --since 2026-11-01 --csv > november.csv
    """  # noqa: D301 - \b is click's mark for lines to keep
    how = _How(**{name: asked.pop(name) for name in ("members", "params", "columns", "as_json", "as_csv")})
    how.check()
    most = limit + 1 if how.for_people else limit  # one extra record shows that there are more
    with Client() as client:
        _must_be_known(client, asked["after_id"])
        if (asked["device"] or "").isdecimal():  # an index on this host, as for `drain`
            asked["device"] = f"{client.settings.host}:{asked['device']}"
        by, metric = _other_order(client, asked)
        order = {"sort": "id" if by or metric else asked["sort"], "metric": metric}
        query = HistoryQuery.of(limit=min(most, _MOST), **{**asked, **order})
        rows = by_value(client, query, by) if by else _rows(client, how, query)
        records = [row.record for row in rows]
        if metric is not None and records and not any(metric in _metrics(record) for record in records):
            raise _no_order(metric, _axes(client, asked["array"]))
        params = client.history.params(records) if how.has_params else {}
        names, others = how.columns_of(params, records, lambda: _swept(client, query))
        others |= _on_demand(client, records, names or ())
        never_began = _never_began(client, query) if how.for_people else None
        if not records and not never_began:
            print_message("gpuqueue", "no job in the history matches" + why_nothing(client, asked))
    if how.as_json:
        plain_rows = [to_plain(record.without_secrets()) for record in records]
        if how.params:
            plain_rows = [{**row, "params": params.get(row["job"]["id"])} for row in plain_rows]
        print_json(plain_rows)
    elif how.as_csv:
        click.echo(_csv(records, names or CSV_COLUMNS, {**COLUMNS, **others}), nl=False)
    else:
        others["ending"] = all_columns.folded(rows)
        if records:
            click.echo(all_columns.rows(records[:limit], names, terminal_width(), others=others))
        if explained := all_columns.peak_note(records[:limit], names):
            click.echo(explained, err=True)
        _report_more(rows, limit, never_began, has_pages=by is None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _How:
    """How to show the jobs."""

    members: bool
    params: bool
    columns: str | None
    as_json: bool
    as_csv: bool

    def check(self) -> None:
        """Check the options.

        Raises:
            BadRequest: They exclude each other.

        """
        if self.as_json and self.as_csv:
            raise BadRequest("--json and --csv exclude each other: choose one")
        if self.as_json and self.columns is not None:
            raise BadRequest("--json has no columns, it gives everything: leave out one of the two")

    @property
    def for_people(self) -> bool:
        """Return whether to print a table."""
        return not self.as_json and not self.as_csv

    @property
    def has_params(self) -> bool:
        """Return whether to show parameters of sweeps. A name that is no column may be one."""
        return self.params or (self.columns is not None and all_columns.has_others(self.columns))

    @property
    def folds(self) -> bool:
        """Return whether an array is one row, as far as these options say."""
        return self.for_people and not self.members and not self.has_params

    def columns_of(
        self, params: Mapping[int, Mapping[str, str]], records: Sequence[Record], elsewhere: Callable[[], Iterable[str]]
    ) -> tuple[Sequence[str] | None, dict[str, all_columns.Column]]:
        """Return the names of the columns, or None for the usual ones, and the columns of parameters and metrics.

        *elsewhere* returns the names of the parameters that no row here has. Where a parameter has the name of a
        metric, the column is that of the parameter.

        Raises:
            BadRequest: A name is no column, no parameter and no metric.

        """
        known = _in_braces(name for each in params.values() for name in each)
        here = known
        metrics = _in_braces(name for record in records for name in _metrics(record)) if self.has_params else {}
        if self.columns is not None and all_columns.has_others(self.columns, {**metrics, **known}):
            known = {**_in_braces(elsewhere()), **known}
        names = None if self.columns is None else chosen(self.columns, {**metrics, **known})
        if self.params:
            usual = CSV_COLUMNS if self.as_csv else USUAL
            names = (*(names or usual), *(name for name in here if name not in (names or ())))
        found = {head: all_columns.metric(head, name) for head, name in metrics.items()}
        return names, {**found, **{head: all_columns.param(head, name, params) for head, name in known.items()}}


def _on_demand(client: Client, records: Sequence[Record], names: Sequence[str]) -> dict[str, all_columns.Column]:
    """Return those of the columns *names* that no CSV has unless it is asked for them."""
    found = {name: all_columns.REASON for name in names if name == all_columns.REASON_NAME}
    if all_columns.LAST_NAME in names:
        from gpuqueue.cli.output.job_story import last_line  # noqa: PLC0415 - only for this column

        lines = {record.job.id: last_line(client, record) for record in records if record.runs}
        found[all_columns.LAST_NAME] = all_columns.last(lines)
    return found


def _in_braces(names: Iterable[str]) -> dict[str, str]:
    """Return the names of parameters by the names of their columns. In braces is a name that a column has already."""
    taken = {*COLUMNS, *all_columns.ON_DEMAND}
    return {f"{{{name}}}" if name in taken else name: name for name in dict.fromkeys(names)}


def _swept(client: Client, query: HistoryQuery) -> list[str]:
    """Return the names of the parameters of sweeps that the jobs of *query* have, on this page or a later one."""
    if query.array_id is not None:
        arrays = [client.jobs.get(query.array_id).spec.array]
    else:
        rows = client.history.rows_of(replace(query, sort=Sort.ID, after_id=None, limit=MAX_SEARCHED))
        arrays = [row.record.job.spec.array for row in rows]
    return [axis.name for array in arrays if array is not None for axis in array.axes]


def _rows(client: Client, how: _How, query: HistoryQuery) -> list[FoldedRow]:
    """Return the jobs, or a row for each array if neither the options nor the order want its members."""
    if how.folds and query.array_id is None and query.is_by_id:
        return client.history.rows_of(query)
    return [FoldedRow(record=each, last_id=each.job.id) for each in client.history.records_of(query)]


def _other_order(client: Client, asked: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the parameter of a sweep, or the metric, that ``--sort`` names; None for both if it names neither.

    Raises:
        BadRequest: It is no name, or the order has no pages to continue.

    """
    key = str(asked["sort"])
    if key in {str(sort) for sort in Sort}:
        return None, None
    names = _axes(client, asked["array"])
    if key in names:
        if asked["after_id"] is not None:
            raise BadRequest("--after continues an order of the history, not one by a value of a sweep: use --limit")
        return key, None
    from gpuqueue.model.job_values import NAME  # noqa: PLC0415 - only for a metric

    if not NAME.fullmatch(key):
        raise _no_order(key, names)
    return None, key


def _axes(client: Client, array_id: int | None) -> list[str]:
    """Return the names of the values of a sweep, none without one."""
    array = None if array_id is None else client.jobs.get(array_id).spec.array
    return [] if array is None else [axis.name for axis in array.axes]


def _no_order(key: str, names: Sequence[str]) -> BadRequest:
    """Return the error that ``--sort`` names no order; *names* are those of the values of a sweep."""
    also = f", {', '.join(names)}" if names else ", or with --array ID a value of its sweep"
    return BadRequest(f"--sort {brief(key)} is no order: choose from {', '.join(Sort)}, a metric of these jobs{also}")


def _metrics(record: Record) -> Mapping[str, float]:
    return {} if record.last_run is None else record.last_run.metrics


def by_value(client: Client, query: HistoryQuery, name: str) -> list[FoldedRow]:
    """Return the members of *query* in the order of the parameter *name*: numbers fall, other values ascend.

    A value is unknown if the history lacks the array. Unknown values come last.
    """
    records = client.history.records_of(replace(query, limit=MOST_MEMBERS, reverse=False))
    values = {job_id: each[name] for job_id, each in client.history.params(records).items()}
    try:
        keys: Mapping[int, Any] = {job_id: -float(value) for job_id, value in values.items()}
    except ValueError:
        keys = values
    known = [record for record in records if record.job.id in keys]
    known.sort(key=lambda record: keys[record.job.id], reverse=query.reverse)
    ordered = [*known, *(record for record in records if record.job.id not in keys)]
    return [FoldedRow(record=each, last_id=each.job.id) for each in ordered[: query.limit]]


def _must_be_known(client: Client, after_id: int | None) -> None:
    """Check that the job of ``--after`` exists: otherwise the page would be the first one, or empty.

    Raises:
        JobNotFound: The job is not in the history.

    """
    if after_id is not None and not client.history.has(after_id):
        raise JobNotFound(f"there is no job {after_id} in the history to continue after: take the last id of a page")


def _never_began(client: Client, query: HistoryQuery) -> JobName | None:
    """Return the members of the array that never began, if ``--array`` is the only filter.

    The history has no record of these members.
    """
    usual = HistoryQuery()
    rest = replace(query, array_id=None, states=(), sort=usual.sort, reverse=usual.reverse, limit=usual.limit)
    if query.array_id is None or rest != usual or {*query.states} - {JobState.CANCELLED}:
        return None
    indexes = client.history.never_began(query.array_id)
    return JobName(query.array_id, indexes) if indexes else None


def _report_more(rows: Sequence[FoldedRow], limit: int, never_began: JobName | None, *, has_pages: bool) -> None:
    """Print how to get more, which is the next page if the order has pages, and the members that never began."""
    if len(rows) > limit and not has_pages:
        click.echo("and more: add --limit N", err=True)
    elif len(rows) > limit:
        last = rows[limit - 1]
        job, is_own = last.record.job, last.last_id == last.record.job.id
        label = job.label if is_own else str(Member.of(last.last_id, job.id))
        click.echo(f"and more: add --after {label}", err=True)
    if never_began:
        click.echo(f"and never began: {short(str(never_began), 200)}, cancelled before a device took them", err=True)


def _csv(records: Sequence[Record], names: Sequence[str], known: Mapping[str, all_columns.Column]) -> str:
    return csv_text([names, *([known[name].value(record) for name in names] for record in records)])


def why_nothing(client: Client, asked: Mapping[str, Any]) -> str:
    """Return which filter matches no job, or what to try.

    *asked* are the filters. The result begins with a colon or a full stop, since it follows "no job in the history
    matches".
    """
    given = [name for name in _FILTERS if asked.get(name) not in _NOTHING]
    for name in given:
        words, then = _FILTERS[name]
        # A job must have all tags, so each one is checked alone.
        for each in [[tag] for tag in asked[name]] if name == "tags" else [asked[name]]:
            alone: dict[str, Any] = {name: each}
            if not client.history.search(**alone, limit=1):
                value = each if name == "tags" else asked[name]
                return f": {words.format(_quoted(value))}. {_hint_of_value(name, value) or then}"
    if asked["after_id"] is not None:
        return f": none comes after job {asked['after_id']} in this order"
    if not given:
        return ". gpuqueue queue lists those that wait or run"
    return ": each filter finds some, all of them together none. Leave one out" if len(given) > 1 else ""


def _quoted(value: Any) -> str:
    """Return a typed value for a message, made safe and short."""
    if isinstance(value, (list, tuple)):
        return " or ".join(map(_quoted, value))
    return str(value) if isinstance(value, int) else brief(value)


def _hint_of_value(name: str, value: Any) -> str | None:
    """Return a hint that depends on the *value* of the filter, or None."""
    if name == "name" and "[" in value.replace("[[]", ""):
        return (
            f"There [ begins a set of letters; for the sign itself write [[]: --name {brief(value.replace('[', '[[]'))}"
        )
    if name == "name" and ("*" in value or "?" in value):
        return "A pattern is for the whole name, by case: --name '*part*' finds it anywhere"
    if name == "text" and not _QUOTED.isdisjoint(value):
        return "The command is stored as gpuqueue show prints it, quoted for a shell: search for one word of it"
    return None
