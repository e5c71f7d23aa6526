"""CSV of the history and of statistics, the same from the command line and from the service."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import datetime, timezone

from gpuqueue.codec.wire import to_plain
from gpuqueue.model.run import VALUES, Record
from gpuqueue.model.statistics import Statistics
from gpuqueue.text.sanitize import plain


def cell(value: object) -> str:
    """Return *value* as a CSV cell; text that a spreadsheet would evaluate as a formula gets a leading quote."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat(timespec="milliseconds")
    text = plain(str(value))
    return (
        f"'{text}" if text[:1] in ("=", "+", "@") or (text[:1] == "-" and not isinstance(value, (int, float))) else text
    )


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return *rows* as the lines of a CSV file."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return out.getvalue()


def csv_of_records(records: Iterable[Record]) -> str:
    """Return one line for each of *records*, with the columns of ``VALUES`` and without a line of their names."""
    return csv_text([value(record) for value in VALUES.values()] for record in records)


def csv_of_statistics(statistics: Statistics) -> str:
    """Return the names of the figures, and a line for each group."""
    groups = ([group.key, group.label, *to_plain(group.figures).values()] for group in statistics.groups)
    return csv_text([["key", "label", *to_plain(statistics.total)], *groups])
