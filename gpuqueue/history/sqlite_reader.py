"""A fast reader for one job of a SQLite history database, with the standard library alone.

Importing SQLAlchemy takes several times as long as the rest of ``logs``, ``wait`` and ``show``. This reader raises
:class:`~gpuqueue.history.sqlite_file.Shut` for other databases, for tables of another version, and on any error. The
caller then uses :class:`gpuqueue.history.database.HistoryDatabase`, which also reports errors
(docs/internals/adr/0011).
"""

from __future__ import annotations

import sqlite3
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpuqueue.history.records import record_of
from gpuqueue.history.sqlite_file import Shut, reading

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuqueue.model.run import Record

#: How long to wait for a locked file, in seconds. ``HistoryDatabase`` then waits longer.
WAIT_S = 1.0

__all__ = ["Shut", "record"]


def record(url: str, job_id: int) -> Record | None:
    """Return the job with all its data, or None if it is not in the history database at *url*.

    Raises:
        Shut: only :class:`gpuqueue.history.database.HistoryDatabase` can answer.

    """
    with reading(url, WAIT_S) as connection:
        return record_of(_File(connection), job_id)


class _File:
    """Reads rows with sqlite3 for :mod:`gpuqueue.history.records`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.row_factory = sqlite3.Row

    def of(self, table: str, key: str, ids: Collection[int], order: str) -> list[sqlite3.Row]:
        """Return whole rows: see :class:`gpuqueue.history.records.Rows`."""
        if not ids:
            return []
        some = f"SELECT * FROM {table} WHERE {key} IN ({_marks(ids)}) ORDER BY {key}, {order}"  # noqa: S608 - our words
        return self._connection.execute(some, tuple(ids)).fetchall()

    def count_states(self, array_ids: Collection[int]) -> list[tuple[int, str, int]]:
        """Return members per array and state: see :class:`gpuqueue.history.records.Rows`."""
        some = f"SELECT array_id, state, count(*) FROM jobs WHERE array_id IN ({_marks(array_ids)})"  # noqa: S608 - as above
        found = self._connection.execute(f"{some} GROUP BY array_id, state", tuple(array_ids))
        return [(array_id, state, number) for array_id, state, number in found]


def _marks(ids: Collection[int]) -> str:
    return ", ".join("?" * len(ids))


def _moment(reported: bytes) -> datetime:
    """Return an aware time. SQLite stores no zone, and all stored times are in UTC."""
    return datetime.fromisoformat(reported.decode()).replace(tzinfo=timezone.utc)


# Keyed by the types that the migrations declare, so that a new column of these types needs no change here.
sqlite3.register_converter("DATETIME", _moment)
sqlite3.register_converter("BOOLEAN", lambda reported: reported != b"0")
