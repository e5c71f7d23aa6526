"""The ``snapshots`` command."""

from __future__ import annotations

import click

from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output.render import Column, table_of, terminal_width
from gpuqueue.client import Client
from gpuqueue.model.code_snapshot import StoredSnapshot
from gpuqueue.text.units import format_bytes
from gpuqueue.words import values

#: Digits of an address in the table, and jobs that it names.
_DIGITS, _JOBS = 12, 5


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def snapshots(context: click.Context, *, as_json: bool) -> None:
    """List your snapshots: the code that you have sent with jobs.

    Each is deleted some time after its last use, or by you.

    \b
    Examples:
      gpuqueue snapshots
      gpuqueue snapshots --json
      gpuqueue snapshots delete 3442fefc16a1
    """  # noqa: D301 - \b is click's mark for lines to keep
    if context.invoked_subcommand is not None:
        return
    with Client() as client:
        found = client.snapshots.list()
    if as_json:
        print_json(found)
    else:
        click.echo(table_of(COLUMNS, found, terminal_width()) if found else "no snapshots")


@snapshots.command()
@click.argument("addresses", metavar="ADDRESS…", nargs=-1, required=True)
def delete(addresses: tuple[str, ...]) -> None:
    """Delete snapshots that no job needs any more. Files that other snapshots have, too, stay.

    ADDRESS is that of the list, or its first digits. Ended jobs with it can then not be retried.

    \b
    Examples:
      gpuqueue snapshots delete 3442fefc16a1
      gpuqueue snapshots delete 3442fe 90ab12
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        for address in addresses:
            deleted = client.snapshots.delete(address)
            click.echo(f"snapshot {deleted.address[:_DIGITS]} deleted, {format_bytes(deleted.freed_bytes)} freed")


def _jobs(found: StoredSnapshot) -> str:
    more = f" and {len(found.jobs) - _JOBS} more" if len(found.jobs) > _JOBS else ""
    return (" ".join(found.jobs[:_JOBS]) or "-") + more


#: Columns of the list, from left to right.
COLUMNS: tuple[Column[StoredSnapshot], ...] = (
    Column(head="ADDRESS", cell=lambda each, _: each.address[:_DIGITS]),
    Column(head="FILES", cell=lambda each, _: str(each.files), right=True),
    Column(head="SIZE", cell=lambda each, _: format_bytes(each.size_bytes), right=True),
    Column(head="LAST USED", cell=lambda each, _: values.when(each.used_at)),
    Column(head="JOBS", cell=lambda each, _: _jobs(each), least=6, narrows=0),
)
