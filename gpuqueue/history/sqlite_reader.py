"""A small door to the book: one job of an SQLite file, read by the standard library alone.

A person waits for imports, and SQLAlchemy takes several times as long as all the rest of ``logs``, ``wait`` and
``show``. What this door would not do to the letter it leaves to that: it is shut for every other database, for other
tables than ours, and at the first trouble, since :class:`gpuqueue.history.database.Book` has the words for it
(docs/adr/0011).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING
from urllib.parse import quote

from gpuqueue.history.records import record_of
from gpuqueue.history.revision import REVISION

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuqueue.model.run import Record

#: How long to wait for somebody who keeps the file locked, in seconds. The library waits on after that.
WAIT_S = 1.0
#: What the address of a file begins with whose path is absolute.
_FILE = "sqlite:////"


class Shut(Exception):
    """Nothing can be read here: ask the whole book, which can, or says why not."""


def record(url: str, job_id: int) -> Record | None:
    """Return the job with all that the book at *url* has of it, or None if the book does not know it.

    Raises:
        Shut: only the whole book can tell.

    """
    try:
        with closing(_opened(url)) as connection:
            connection.execute("BEGIN")  # all that is read is of one moment
            known = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            if known is None or known[0] != REVISION:
                raise Shut
            return record_of(_File(connection), job_id)
    except sqlite3.Error as error:
        raise Shut from error


def _opened(url: str) -> sqlite3.Connection:
    """Open the file, which is not made where it is not there."""
    if not url.startswith(_FILE) or {"?", "\0"} & set(url):
        raise Shut
    try:
        place = "file:" + quote(url.removeprefix(_FILE[:-1])) + "?mode=rw"
    except UnicodeError as error:
        raise Shut from error
    return sqlite3.connect(place, uri=True, timeout=WAIT_S, isolation_level=None, detect_types=sqlite3.PARSE_DECLTYPES)


class _File:
    """Reads rows for :mod:`gpuqueue.history.records`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.row_factory = sqlite3.Row

    def of(self, table: str, key: str, ids: Collection[int], order: str) -> list[sqlite3.Row]:
        """Return whole rows: see :class:`gpuqueue.history.rows.Rows`."""
        if not ids:
            return []
        some = f"SELECT * FROM {table} WHERE {key} IN ({_marks(ids)}) ORDER BY {key}, {order}"  # noqa: S608 - our words
        return self._connection.execute(some, tuple(ids)).fetchall()

    def standing(self, array_ids: Collection[int]) -> list[tuple[int, str, int]]:
        """Return where members stand: see :class:`gpuqueue.history.rows.Rows`."""
        some = f"SELECT array_id, state, count(*) FROM jobs WHERE array_id IN ({_marks(array_ids)})"  # noqa: S608 - as above
        found = self._connection.execute(f"{some} GROUP BY array_id, state", tuple(array_ids))
        return [(array_id, state, number) for array_id, state, number in found]


def _marks(ids: Collection[int]) -> str:
    return ", ".join("?" * len(ids))


def _moment(told: bytes) -> datetime:
    """Return an aware time: SQLite keeps no zone, and all that we write there is in UTC."""
    return datetime.fromisoformat(told.decode()).replace(tzinfo=timezone.utc)


# By the types that the migrations declare: whoever adds a column of one need not remember this door.
sqlite3.register_converter("DATETIME", _moment)
sqlite3.register_converter("BOOLEAN", lambda told: told != b"0")
