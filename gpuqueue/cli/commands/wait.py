"""The ``wait`` command."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from gpuqueue.cli.completion.candidates import live_ids
from gpuqueue.cli.follow.status_line import report_away, report_held, report_notes, report_why
from gpuqueue.cli.options.job_id import JobNameType
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output.arrays import first_bad_code
from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.model.job import Job
from gpuqueue.model.job_ref import JobName
from gpuqueue.text.units import parse_duration

#: Values of ``--timeout`` that mean no wait.
NOW = frozenset({"0", "0s"})
#: The most jobs of a wait whose notes are printed: each takes a request.
MAX_NOTED = 20


@click.command()
@click.argument(
    "ids", metavar="ID…", type=JobNameType(several=True), nargs=-1, required=True, shell_complete=live_ids()
)
@click.option("--any", "first", is_flag=True, help="Wait until the first job has ended.")
@click.option("--all", "every", is_flag=True, help="Wait until all jobs have ended (default).")
@click.option("--timeout", metavar="TIME", help="Stop waiting after this time (exit code 124); 0s: only check.")
@json_option
def wait(ids: tuple[str, ...], timeout: str | None, *, first: bool, every: bool, as_json: bool) -> None:
    """Wait until all these jobs have ended. Exit code: 0 if all succeeded, else that of the first job that did not.

    For an array or a part of one, the exit code is the highest of its members. With --any it is that of the job that
    ends first, and the name of this job is printed.

    \b
    Examples:
      gpuqueue wait 12 13
      gpuqueue wait --timeout 2h 12 && gpuqueue logs 12
      gpuqueue wait --any 12 13 14
      gpuqueue wait 14-19 17_0-9
    """  # noqa: D301 - \b is click's mark for lines to keep
    if first and every:
        raise BadRequest("--any and --all contradict each other: use one of them")
    timeout_s = None if timeout is None else 0.0 if timeout.strip() in NOW else parse_duration(timeout)
    ended: dict[int | str, Job] = {}
    from gpuqueue.client import Client  # noqa: PLC0415 - as above
    from gpuqueue.client.selection import Which  # noqa: PLC0415 - lazy import for startup time

    with Client() as client:
        meant = [name for word in ids for name in client.jobs.named(word, which=Which.ANY)]
        words = [list(JobName.parse(name).each()) for name in meant]
        names = [one for each in words for one in each]
        for name, job in client.jobs.ends(names, timeout_s=timeout_s, held=report_held, away=report_away):
            ended[name] = job
            report_why(name, job)
            if job.attempt and len(names) <= MAX_NOTED:
                with suppress(GpuQueueError):  # the store may have gone meanwhile
                    report_notes(name, client.jobs.newest(name))
            if first:
                break
        records = {name: client.jobs.recorded(ended[name]) for name in names if name in ended} if as_json else {}
        code = first_bad_code(client, words, ended, records)
    if as_json:
        print_json([records[name] for name in names if name in ended])
    elif first:
        click.echo(next(iter(ended)))
    sys.exit(code)
