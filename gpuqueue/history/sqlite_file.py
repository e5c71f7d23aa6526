"""Opens the file of a SQLite history database for the fast readers, with the standard library alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from gpuqueue.history.revision import REVISION

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Start of the URL of a SQLite file with an absolute path.
FILE = "sqlite:////"


class Shut(Exception):
    """A fast reader cannot answer. :class:`gpuqueue.history.database.HistoryDatabase` can, or reports why not."""


@contextmanager
def reading(url: str, wait_s: float) -> Iterator[sqlite3.Connection]:
    """Yield a connection to the file at *url*, in a transaction for reading. A missing file is not created.

    A locked file is waited for up to *wait_s* seconds.

    Raises:
        Shut: it is no file, its tables are of another version, or SQLite reports an error.

    """
    try:
        with closing(_opened(url, wait_s)) as connection:
            connection.execute("BEGIN")  # all reads see the same state
            known = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            if known is None or known[0] != REVISION:
                raise Shut
            yield connection
    except sqlite3.Error as error:
        raise Shut from error


def _opened(url: str, wait_s: float) -> sqlite3.Connection:
    if not url.startswith(FILE) or {"?", "\0"} & set(url):
        raise Shut
    try:
        place = "file:" + quote(url.removeprefix(FILE[:-1])) + "?mode=rw"
    except UnicodeError as error:
        raise Shut from error
    return sqlite3.connect(place, uri=True, timeout=wait_s, isolation_level=None, detect_types=sqlite3.PARSE_DECLTYPES)
