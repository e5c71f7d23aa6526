"""``history``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import click

from gpuqueue.checks import MAX_ID
from gpuqueue.cli import render
from gpuqueue.client import Client
from gpuqueue.codec import record_to_plain
from gpuqueue.errors import BadRequest
from gpuqueue.job import JobState
from gpuqueue.run import Record
from gpuqueue.units import parse_duration
from gpuqueue.words import plain

#: The columns of ``--csv``; docs/reference/json.md explains them. New ones are only ever added at the end.
CSV_COLUMNS = (
    "id",
    "name",
    "user",
    "state",
    "ending",
    "exit_code",
    "signal",
    "host",
    "devices",
    "submitted_at",
    "started_at",
    "ended_at",
    "duration_s",
    "mem_bytes",
    "gpus",
    "peak_bytes",
    "peak_source",
    "attempt",
    "command",
)


@click.command()
@click.option("-u", "--user", help="Only this user's jobs.")
@click.option("-n", "--name", help="Only jobs of this name.")
@click.option("-s", "--state", multiple=True, type=click.Choice([str(s) for s in JobState]), help="Only in this state.")
@click.option("--since", metavar="WHEN", help="Submitted since: 7d, 12h, 2026-11-01, 2026-11-01T09:00.")
@click.option("--until", metavar="WHEN", help="Submitted before.")
@click.option("-d", "--device", metavar="UUID", help="Only runs on this device; the start of the UUID is enough.")
@click.option(
    "-l", "--limit", type=click.IntRange(1, 10**9), default=50, show_default=True, help="How many, newest first."
)
@click.option(
    "--before",
    "before_id",
    type=click.IntRange(1, MAX_ID),
    metavar="ID",
    help="Only older than this job: the next page.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON (docs/reference/json.md).")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV, one line a job.")
def history(  # noqa: PLR0913 - each is one option
    user: str | None,
    name: str | None,
    state: tuple[str, ...],
    since: str | None,
    until: str | None,
    device: str | None,
    limit: int,
    before_id: int | None,
    *,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Show who ran what, where, for how long, and how much memory it really took. Newest first."""
    if as_json and as_csv:
        raise BadRequest("--json and --csv exclude each other: choose one")
    with Client() as client:
        records = client.history(
            user=user,
            name=name,
            states=[JobState(each) for each in state],
            since=_moment(since),
            until=_moment(until),
            device=device,
            limit=limit,
            before_id=before_id,
        )
    if as_json:
        click.echo(json.dumps([record_to_plain(record) for record in records], indent=2))
    elif as_csv:
        click.echo(_csv(records), nl=False)
    elif records:
        click.echo(render.history_rows(records))
    else:
        click.echo("no job in the history matches", err=True)


def _moment(text: str | None) -> datetime | None:
    """Return the time that *text* means: so long ago, or an ISO date in local time."""
    if text is None:
        return None
    try:
        return datetime.now(timezone.utc) - timedelta(seconds=parse_duration(text))
    except BadRequest:
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise BadRequest(f"{text!r} is no time: write 7d, 12h, 2026-11-01 or 2026-11-01T09:00") from None


def _csv(records: Sequence[Record]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for record in records:
        plain = record_to_plain(record)
        last = plain["runs"][-1] if plain["runs"] else {}
        ending = last.get("ending") or {}
        devices = last.get("devices", [])
        known = {
            **plain,
            "ending": ending.get("kind"),
            "exit_code": ending.get("exit_code"),
            "signal": ending.get("signal"),
            "devices": " ".join(each["uuid"] for each in devices),
            "duration_s": last.get("duration_s"),
            "peak_bytes": last.get("peak_bytes"),
            "peak_source": " ".join(sorted({each["peak"]["source"] for each in devices})),
            "command": record.job.spec.command,
        }
        writer.writerow(["" if known[column] is None else _cell(known[column]) for column in CSV_COLUMNS])
    return out.getvalue()


def _cell(value: object) -> str:
    """Return *value* for a spreadsheet: text that it would take for a formula gets a quote in front."""
    text = plain(str(value))
    return (
        f"'{text}" if text[:1] in ("=", "+", "@") or (text[:1] == "-" and not isinstance(value, (int, float))) else text
    )
