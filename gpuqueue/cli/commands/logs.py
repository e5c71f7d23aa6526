"""The ``logs`` command."""

from __future__ import annotations

import click

from gpuqueue.cli.follow.status_line import report_again, report_away, report_held
from gpuqueue.cli.options.count import Count
from gpuqueue.cli.options.job_id import job_id
from gpuqueue.client import Client
from gpuqueue.console import print_message, put
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model.run import EndingKind
from gpuqueue.model.times import PASTS, moment


@click.command()
@job_id
@click.option("-f", "--follow", is_flag=True, help="Print new output until the job has ended.")
@click.option("-n", "--tail", "lines", metavar="N", type=Count(0), help="Start with the last N lines.")
@click.option("--since", metavar="TIME", help=f"Start with the output of this time: {PASTS}.")
@click.option("--stderr", is_flag=True, help="Print standard error of a job with --separate-stderr.")
def logs(job_id: str, lines: int | None, since: str | None, *, follow: bool, stderr: bool) -> None:
    """Print the output of a job: standard output and standard error, in the order of writing.

    If the job was submitted with --separate-stderr, print standard output only; --stderr prints standard error.

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
    begin = moment("since", since)
    with Client() as client:
        newest = client.jobs.newest(job_id)
        if stderr and not newest.job.spec.separate_stderr:
            raise Refused(
                f"job {job_id} writes standard error into its log, in the order of writing: gpuqueue logs {job_id}. "
                "gpuqueue submit --separate-stderr keeps it apart"
            )
        tail = client.logs.tail(stderr=stderr)
        try:
            client.logs.turn(tail, newest)
        except Refused:  # --follow accepts a job that has no log yet
            if not follow:
                raise
        if lines is not None:
            tail.skip_to_last(lines)
        if begin is not None and not tail.skip_to_time(begin):
            print_message("gpuqueue", f"when job {job_id} wrote what was not noted: all of its log is printed")
        chunks = (
            client.logs.follow(job_id, tail, held=report_held, again=report_again, away=report_away)
            if follow
            else tail.rest()
        )
        for chunk in chunks:  # not sanitized: programs read logs too
            put(chunk)
        last = (client.jobs.newest(job_id) if follow else newest).last_run
    if last is not None and last.ending is not None and last.ending.kind is EndingKind.REFUSED:
        print_message("gpuqueue", f"job {job_id} never started: {last.ending.detail}")
