"""The ``fetch`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpuqueue.cli.completion.candidates import directories
from gpuqueue.cli.options.count import Count
from gpuqueue.cli.options.job_id import job_id
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.client import Client
from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import later
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_bytes

if TYPE_CHECKING:
    from gpuqueue.cli.follow import updated_line
    from gpuqueue.model.run_files import Fetched, LeftOut, RunFile
else:
    updated_line = later("gpuqueue.cli.follow.updated_line")

#: Most files that were left out and are named. The rest is counted.
NAMED = 10
#: Exit code if a file was left out.
INCOMPLETE = 1


@click.command()
@job_id
@click.argument("patterns", metavar="[PATTERN]…", nargs=-1)
@click.option("--run", "number", metavar="N", type=Count(), help="Fetch from this run. Default: the newest.")
@click.option("--to", metavar="DIR", help="Directory for the files. Default: results-ID.", shell_complete=directories)
@click.option("--replace", is_flag=True, help="Replace files that are there with another content.")
@click.option("--kept", is_flag=True, help="Take the files of --keep, also if the copy of the code is there.")
@click.option("--list", "only_list", is_flag=True, help="Print sizes and paths, and write no file.")
@json_option
def fetch(
    job_id: str,
    patterns: tuple[str, ...],
    *,
    number: int | None,
    to: str | None,
    replace: bool,
    kept: bool,
    only_list: bool,
    as_json: bool,
) -> None:
    """Fetch the files that a job made or changed in its copy of the code, or all that match a pattern.

    Patterns have the syntax of .gitignore. Files that are there with the same content are skipped.

    \b
    Examples:
      gpuqueue fetch 12
      gpuqueue fetch 12 'results/**' '*.csv'
      gpuqueue fetch 12 --to ~/runs/first
      gpuqueue fetch --list 12 '**'
      gpuqueue fetch 17_2
      gpuqueue fetch --kept 12
    """  # noqa: D301 - \b is click's mark for lines to keep
    if only_list and (to is not None or replace):
        raise BadRequest("--list writes no file: leave out --to and --replace")
    line = updated_line.BytesLine()

    def warn(text: str) -> None:
        line.clear()
        print_message("gpuqueue", text)

    with Client() as client:
        if only_list:
            _print_list(client.files.list(job_id, patterns, run=number, kept=kept, warn=warn), as_json=as_json)
            return
        try:
            found = client.files.fetch(
                job_id, patterns, run=number, to=to, replace=replace, kept=kept, seen=line.seen, warn=warn
            )
        finally:
            line.clear()
    if as_json:
        print_json(found)
    else:
        click.echo(_summary(found, asked_kept=kept))
    _report_left_out(found.left_out)
    if found.left_out or found.notes:
        sys.exit(INCOMPLETE)


def _print_list(found: Sequence[RunFile], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    sizes = ["link" if each.target is not None else format_bytes(each.size_bytes) for each in found]
    width = max(map(len, sizes), default=0)
    lines = (
        f"{size:>{width}}  {plain(each.path)}" + (f" -> {plain(each.target)}" if each.target is not None else "")
        for size, each in zip(sizes, found, strict=True)
    )
    for line in lines:
        click.echo(line)


def _summary(found: Fetched, *, asked_kept: bool) -> str:
    """Return what was fetched, and where to, in one line."""
    files = f"{found.files} file{'' if found.files == 1 else 's'}, {format_bytes(found.size_bytes)}"
    if not found.files:
        return "0 files"
    were = "all of them" if found.skipped == found.files else f"{found.skipped} of them"
    before = f"; {were} there before" if found.skipped else ""
    kept = "; only kept files, the copy of the code was deleted" if found.source == "kept" and not asked_kept else ""
    return f"{files}, in {plain(found.directory)}{before}{kept}"


def _report_left_out(left_out: Sequence[LeftOut]) -> None:
    for each in left_out[:NAMED]:
        print_message("gpuqueue", f"not fetched: {plain(each.path)} {each.why}")
    if len(left_out) > NAMED:
        print_message("gpuqueue", f"not fetched: {len(left_out) - NAMED} more")
