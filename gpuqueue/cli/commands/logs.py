"""The ``logs`` command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import click

from gpuqueue.cli.completion.candidates import live_ids
from gpuqueue.cli.follow.status_line import report_again, report_away, report_held, report_history_away
from gpuqueue.cli.options.count import Count
from gpuqueue.cli.options.job_selection import on_each
from gpuqueue.client import Client
from gpuqueue.client.selection import Which
from gpuqueue.console import print_message, put
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job
from gpuqueue.model.job_ref import JobName, meant
from gpuqueue.model.run import EndingKind, Record
from gpuqueue.model.times import PASTS, moment

if TYPE_CHECKING:
    from gpuqueue.cli.output import render
    from gpuqueue.client import listing
else:
    listing = later("gpuqueue.client.listing")
    render = later("gpuqueue.cli.output.render")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Options:
    """The options of the command."""

    follow: bool
    lines: int | None
    since: str | None
    stderr: bool
    number: int | None


@click.command()
@click.argument("ids", metavar="ID…", nargs=-1, required=True, shell_complete=live_ids())
@click.option("-f", "--follow", is_flag=True, help="Print new output until the job has ended. For one job.")
@click.option(
    "-n", "--tail", "lines", metavar="N", type=Count(0), help="Start with the last N lines, as a terminal shows them."
)
@click.option("--since", metavar="TIME", help=f"Start with the output of this time: {PASTS}.")
@click.option("--stderr", is_flag=True, help="Print standard error of a job with --separate-stderr.")
@click.option("--run", "number", metavar="N", type=Count(), help="Print the log of this run. Default: the newest.")
def logs(*, ids: tuple[str, ...], **options: bool | int | str | None) -> None:
    """Print the output of jobs: standard output and standard error, in the order of writing.

    If the job was submitted with --separate-stderr, print standard output only; --stderr prints standard error. The
    logs of several jobs, and of the members of an array, get headings.

    \b
    Examples:
      gpuqueue logs 12
      gpuqueue logs -f 12
      gpuqueue logs -f --tail 20 12
      gpuqueue logs --since 5m 12
      gpuqueue logs --tail 3 17
      gpuqueue logs --run 1 12
      gpuqueue logs 12 | grep loss
    """  # noqa: D301 - \b is click's mark for lines to keep
    wanted = _Options(**options)  # type: ignore[arg-type] # as click parsed them
    if wanted.lines is not None and wanted.since is not None:
        raise BadRequest("--tail and --since both say where to begin: choose one")
    moment("since", wanted.since)
    words = [name for word in ids for name in _each(word)]
    several = len(words) > 1 or "-" in words[0]
    if wanted.follow and (several or wanted.number is not None):
        raise BadRequest("--follow shows the newest run of one job: name one job, and leave out --run")
    printed: list[str] = []

    def show(client: Client, name: str) -> None:
        record = _record(client, name, wanted)
        if wanted.stderr and not record.job.spec.separate_stderr:
            raise Refused(
                f"job {name} writes standard error into its log, in the order of writing: gpuqueue logs {name}. "
                "gpuqueue submit --separate-stderr keeps it apart"
            )
        if record.job.spec.array is None or wanted.follow:
            _print(client, record, name, wanted, partial(_head, printed, name) if several else lambda: None)
        else:
            _print_members(client, record.job, wanted, printed)

    with Client() as client:
        sys.exit(on_each(client, words, show, which=Which.ANY))


def _each(word: str) -> Iterator[str]:
    """Yield the names of the single jobs that *word* names; a range of ids, or a malformed word, as it is."""
    try:
        name = meant(word)
    except BadRequest:
        yield word
        return
    if isinstance(name, JobName):
        yield from name.each()
    else:
        yield word


def _record(client: Client, name: str, wanted: _Options) -> Record:
    if wanted.number is None:
        return client.jobs.newest(name)
    return client.jobs.show(name, away=report_history_away)


def _print_members(client: Client, array: Job, wanted: _Options, printed: list[str]) -> None:
    """Print the logs of all members of *array* that have one, in the order of their indexes.

    Raises:
        Refused: none has one that can be read.

    """
    before = len(printed)
    for record in listing.members(client, array, lambda name: _record(client, name, wanted)):
        name = record.job.label
        if any(run.log_path for run in record.runs):
            try:
                _print(client, record, name, wanted, partial(_head, printed, name))
            except Refused as error:
                print_message("gpuqueue", str(error))
    if len(printed) == before:
        raise Refused(f"no member of array {array.id} has a log to read: gpuqueue show {array.id}")


def _head(printed: list[str], name: str) -> None:
    """Print the heading of a log, as ``tail`` does for several files."""
    put(f"{chr(10) if printed else ''}==> {name} <==\n".encode())
    printed.append(name)


def _print(client: Client, record: Record, job_id: str, wanted: _Options, head: Callable[[], None]) -> None:
    """Print the log of one job, after its heading."""
    follows = wanted.follow and not record.job.state.is_end
    tail = client.logs.tail(stderr=wanted.stderr, warn=_warn)
    try:
        client.logs.turn(tail, record, run=wanted.number)
    except Refused:  # --follow accepts a job that has no log yet
        if not follows:
            raise
    head()
    if wanted.lines is not None:
        tail.skip_to_last(wanted.lines)
    begin = moment("since", wanted.since)
    if begin is not None and not tail.skip_to_time(begin):
        print_message("gpuqueue", f"when job {job_id} wrote what was not noted: all of its log is printed")
    again = partial(report_again, job_id)
    rest = tail.rest() if wanted.lines is None else render.last_lines(tail.rest(), wanted.lines)
    more: Iterator[bytes] = iter(())
    if follows:
        more = client.logs.follow(job_id, tail, held=report_held, again=again, away=report_away)
    for chunk in chain(rest, more):  # not sanitized: programs read logs too
        put(chunk)
    _report_refused(job_id, client.jobs.newest(job_id) if follows else record, wanted.number)


def _warn(text: str) -> None:
    """Print that the newest part of a log may be missing."""
    print_message("gpuqueue", text)


def _report_refused(job_id: str, record: Record, number: int | None) -> None:
    """Print why the run never started, if it was refused."""
    last = next((run for run in reversed(record.runs) if number in {None, run.attempt}), None)
    if last is not None and last.ending is not None and last.ending.kind is EndingKind.REFUSED:
        print_message("gpuqueue", f"job {job_id} never started: {last.ending.detail}")
