"""The ``audit`` command."""

from __future__ import annotations

import click

from gpuqueue.cli.options.count import Count
from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.output.render import Column, table_of, terminal_width
from gpuqueue.client import Client
from gpuqueue.model.audit import AuditEntry
from gpuqueue.model.times import PASTS
from gpuqueue.text.sanitize import plain
from gpuqueue.words import values

#: Largest ``--limit``.
_MOST = 10**6


@click.command()
@click.option("--since", metavar="TIME", help=f"Only changes since: {PASTS}.")
@click.option("--user", metavar="NAME", help="Only changes that this account asked for.")
@click.option("--action", metavar="NAME", help="Only this action: submit, cancel, token-create, …")
@click.option(
    "--limit", type=Count(least=1, most=_MOST), default=100, show_default=True, help="Print at most this many entries."
)
@json_option
def audit(since: str | None, user: str | None, action: str | None, limit: int, *, as_json: bool) -> None:
    """Show the audit log, the newest changes first: who changed what, when and from where. Only for admins.

    \b
    Examples:
      gpuqueue audit --since 7d
      gpuqueue audit --user ada --action cancel
      gpuqueue audit --since 2026-11-01 --limit 100000 --json
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        found = client.access.audit(since=since, user=user, action=action, limit=limit)
    if as_json:
        print_json(found)
    else:
        click.echo(table_of(COLUMNS, found, terminal_width()) if found else "no changes are recorded")


def _what(entry: AuditEntry) -> str:
    return " ".join([*entry.jobs, *(f"{name}={value}" for name, value in entry.detail.items() if value)]) or "-"


def _outcome(entry: AuditEntry) -> str:
    outcome = "unknown" if entry.outcome is None else str(entry.outcome)
    return f"{outcome}: {plain(entry.reason)}" if entry.reason else outcome


def _proof(entry: AuditEntry) -> str:
    return f"{entry.via} {entry.token_id}" if entry.token_id else entry.via


#: Columns of the list, from left to right.
COLUMNS: tuple[Column[AuditEntry], ...] = (
    Column(head="TIME", cell=lambda each, _: values.when(each.at)),
    Column(head="USER", cell=lambda each, _: plain(each.account) or "-", least=6, narrows=2),
    Column(head="PROOF", cell=lambda each, _: plain(_proof(each)), keep=0),
    Column(head="FROM", cell=lambda each, _: plain(each.address) or "-", keep=1),
    Column(head="ACTION", cell=lambda each, _: plain(each.action)),
    Column(head="WHAT", cell=lambda each, _: plain(_what(each)), least=8, narrows=0),
    Column(head="OUTCOME", cell=lambda each, _: _outcome(each), least=8, narrows=1),
)
