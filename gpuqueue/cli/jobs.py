"""Commands that look at single jobs: ``queue``, ``show``, ``logs``, ``wait``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuqueue.cli import picture
from gpuqueue.cli.arrays import JobNameType, first_bad_code
from gpuqueue.cli.completing import live_ids, users
from gpuqueue.cli.count import Count
from gpuqueue.cli.fitting import terminal_width
from gpuqueue.cli.held import tell_again, tell_away, tell_held, tell_the_book
from gpuqueue.cli.json_option import json_option
from gpuqueue.cli.once import Once
from gpuqueue.cli.period import EXAMPLES, moment
from gpuqueue.client.watching import Watching
from gpuqueue.command import put, say
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.job import Job
from gpuqueue.jobname import JobName
from gpuqueue.later import later
from gpuqueue.logs import LOG, STDERR, LogTail
from gpuqueue.run import EndingKind, Record
from gpuqueue.units import parse_duration

if TYPE_CHECKING:
    from gpuqueue import codec
    from gpuqueue.cli import live, log_end, queue_json, queue_table, render
else:
    codec = later("gpuqueue.codec")
    live, log_end = later("gpuqueue.cli.live"), later("gpuqueue.cli.log_end")
    queue_json = later("gpuqueue.cli.queue_json")
    queue_table, render = later("gpuqueue.cli.queue_table"), later("gpuqueue.cli.render")

#: How much of a log stands at the end of a job's story, and how wide where no terminal says.
SHOWN_LINES, PIPE_WIDTH = 8, 200

job_id = click.argument("job_id", metavar="ID", type=JobNameType(), shell_complete=live_ids())
#: No time at all, as one may write it.
NOW = frozenset({"0", "0s"})


@click.command(cls=Once)
@click.option("-u", "--user", metavar="NAME", help="Only this user's jobs.", shell_complete=users)
@click.option("-l", "--limit", type=Count(), default=1000, show_default=True, help="How many, oldest first.")
@json_option
def queue(user: str | None, limit: int, *, as_json: bool) -> None:
    """List the jobs that have not ended, in the order of their ids.

    How far a job is stands in its log (tqdm, Keras, "epoch 3/10"), and is seen on the host where that lies. What a
    narrow terminal has no room for is left out; a pipe gets all of it.

    \b
    Examples:
      gpuqueue queue
      gpuqueue queue --user ada
      gpuqueue queue --json | jq '.[] | select(.state == "queued") | .id'
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Watching() as client:
        listing = client.listing(user=user, limit=limit + 1)
        more = len(listing.jobs) > limit
        listing = replace(listing, jobs=listing.jobs[:limit])
        progress = client.progress(listing.jobs, listing.logs)
    if as_json:
        click.echo(json.dumps(queue_json.listing_to_plain(listing, progress), indent=2))
    elif listing.jobs:
        click.echo(queue_table.queue_table(listing, progress, terminal_width()))
    else:
        click.echo("no job waits or runs", err=True)
    if more:
        click.echo(f"and more: gpuqueue queue --limit {10 * limit}", err=True)


@click.command()
@job_id
@json_option
@picture.picture_option("how its memory went")
def show(job_id: str, *, as_json: bool, plot: str | None) -> None:
    """Tell all about one job: what was asked, each run with device, ending and peak memory, and the end of its log.

    \b
    Examples:
      gpuqueue show 12
      gpuqueue show 12 --plot memory.png
      gpuqueue show 12 --json | jq .runs[-1].peak_bytes
    """  # noqa: D301 - \b is click's mark for lines to keep
    if as_json and plot is not None:
        raise BadRequest("--json and --plot exclude each other: choose one")
    if plot is not None:
        picture.check()
    with Watching() as client:
        record = client.show(job_id, away=tell_the_book)
        is_text = not as_json and plot is None
        log = client.log_of(record) if is_text else None
        now = live.look(client, record.job) if is_text else None
    if plot is not None:
        _plot(record, plot)
        return
    click.echo(
        json.dumps(codec.record_to_plain(record), indent=2) if as_json else render.story(record, now, terminal_width())
    )
    if log is not None:
        _show_end(log, f"the end of its log (gpuqueue logs {job_id})")
        if record.job.spec.separate_stderr:
            _show_end(log.with_name(STDERR), f"the end of its standard error (gpuqueue logs --stderr {job_id})")


def _show_end(log: Path, what: str) -> None:
    lines = log_end.log_end(log, SHOWN_LINES, (terminal_width() or PIPE_WIDTH) - 2)
    if lines:
        click.echo("\n".join(["", f"{what}:", *(f"  {line}" for line in lines)]))


def _plot(record: Record, path: str) -> None:
    from gpuqueue.cli import charts  # noqa: PLC0415 - only for who asks for a picture

    run = charts.drawable(record)
    if run is None:
        raise Refused(
            f"job {record.job.label} has no memory to draw: its runs are too short, go on, or could not be seen"
        )
    picture.write(path, charts.title_of(record), charts.memory(record, run), render.story(record))


@click.command()
@job_id
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("-n", "--tail", "lines", metavar="N", type=Count(0), help="Begin with the last N lines.")
@click.option("--since", metavar="TIME", help=f"Begin with what was written then: {EXAMPLES}.")
@click.option("--stderr", is_flag=True, help="Print standard error, of a job that keeps it apart.")
def logs(job_id: str, lines: int | None, since: str | None, *, follow: bool, stderr: bool) -> None:
    """Print what the job wrote: standard output and standard error, in the order of writing.

    Where the job was submitted with --separate-stderr, standard output alone; --stderr prints the other.

    \b
    Examples:
      gpuqueue logs 12
      gpuqueue logs -f 12
      gpuqueue logs -f --tail 20 12
      gpuqueue logs --since 5m 12
      gpuqueue logs 12 | grep loss
    """  # noqa: D301 - \b is click's mark for lines to keep
    if lines is not None and since is not None:
        raise BadRequest("--tail and --since both say where to begin: choose one")
    begin = moment(since)
    with Watching() as client:
        newest = client.newest(job_id)
        if stderr and not newest.job.spec.separate_stderr:
            raise Refused(
                f"job {job_id} writes standard error into its log, in the order of writing: gpuqueue logs {job_id}. "
                "gpuqueue submit --separate-stderr keeps it apart"
            )
        tail = LogTail(STDERR if stderr else LOG)
        try:
            tail.turn_to(client.log_there(newest))
        except Refused:  # to follow a job that has not run yet is no mistake
            if not follow:
                raise
        if lines is not None:
            tail.skip_to_last(lines)
        if begin is not None and not tail.skip_to_time(begin):
            say("gpuqueue", f"when job {job_id} wrote what was not noted: all of its log is printed")
        chunks = (
            client.follow(job_id, tail, held=tell_held, again=tell_again, away=tell_away) if follow else tail.rest()
        )
        for chunk in chunks:  # as the job wrote them, whatever is in them: a log is read by programs as well
            put(chunk)
        last = (client.newest(job_id) if follow else newest).last_run
    if last is not None and last.ending is not None and last.ending.kind is EndingKind.REFUSED:
        say("gpuqueue", f"job {job_id} never started: {last.ending.detail}")


@click.command()
@click.argument(
    "ids", metavar="ID…", type=JobNameType(several=True), nargs=-1, required=True, shell_complete=live_ids()
)
@click.option("--any", "first", is_flag=True, help="For the first of them to end.")
@click.option("--all", "every", is_flag=True, help="For all of them, as if nothing is said.")
@click.option("--timeout", metavar="TIME", help="Give up after this time (exit code 124); 0s: only look.")
@json_option
def wait(ids: tuple[str, ...], timeout: str | None, *, first: bool, every: bool, as_json: bool) -> None:
    """Wait until all these jobs have ended. Exit code: 0 if all succeeded, else the first bad one's.

    Of an array, or a part of one, it is the highest of its members'. With --any it
    is that of the job that ends first, whose name is printed.

    \b
    Examples:
      gpuqueue wait 12 13
      gpuqueue wait --timeout 2h 12 && gpuqueue logs 12
      gpuqueue wait --any 12 13 14
      gpuqueue wait 14-19 17_0-9
    """  # noqa: D301 - \b is click's mark for lines to keep
    if first and every:
        raise BadRequest("--any and --all contradict each other: say one of them")
    timeout_s = None if timeout is None else 0.0 if timeout.strip() in NOW else parse_duration(timeout)
    ended: dict[int | str, Job] = {}
    from gpuqueue.client.choosing import Which  # noqa: PLC0415 - a list or a log takes less
    from gpuqueue.client.staying import Staying  # noqa: PLC0415 - as above

    with Staying() as client:
        meant = [name for word in ids for name in client.named(word, which=Which.ANY)]
        words = [list(JobName.parse(name).each()) for name in meant]
        names = [one for each in words for one in each]
        for name, job in client.ends(names, timeout_s=timeout_s, held=tell_held, away=tell_away):
            ended[name] = job
            if job.because:
                say("gpuqueue", f"job {name} {job.state} ({job.because})")
            if first:
                break
        # How the good ones ended is known: the history need not be asked, nor its library be imported.
        records = {name: client.recorded(ended[name]) for name in names if name in ended} if as_json else {}
        code = first_bad_code(client, words, ended, records)
    if as_json:
        click.echo(json.dumps([codec.record_to_plain(records[name]) for name in names if name in ended], indent=2))
    elif first:
        click.echo(next(iter(ended)))
    sys.exit(code)
