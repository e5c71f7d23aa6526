"""Explains a database error in one line, and names a remedy."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import exc

from gpuqueue.errors import HistoryUnreachable

#: Classes of SQLSTATE (its first two characters) for errors of a row, not of the server: 22 a value, 23 a constraint,
#: 44 a view's check, 54 too long for an index, P0 a trigger.
_OF_THE_ROW = ("22", "23", "44", "54", "P0")


class Trouble(NamedTuple):
    """One kind of database error: what it means, what to do, and how it is recognised.

    ``words`` are searched in the message first, because SQLite has no codes and PostgreSQL reports none while
    connecting. ``codes`` are SQLSTATEs. They recognise a PostgreSQL error whose message is in another language.
    """

    what: str
    remedy: str
    words: tuple[str, ...]
    codes: tuple[str, ...] = ()


_NO_TABLES = Trouble(
    "has no tables yet",
    "run gpuqueue up, or gpuqueue db upgrade",
    ("no such table: alembic_version", 'relation "alembic_version" does not exist'),
)
TROUBLES = (
    _NO_TABLES,
    Trouble(
        "has other tables than this gpuqueue",
        "run gpuqueue db upgrade, or bring back its last backup",
        ("no such table", "no such column", "has no column named"),
        ("42P01", "42703"),
    ),
    Trouble(
        "cannot be written, its disk is full",
        "free some space there",
        ("database or disk is full", "No space left on device"),
        ("53100",),
    ),
    Trouble(
        "can only be read",
        "let the recorder's account write it (for SQLite its directory as well), or name the primary server",
        ("readonly database", "read-only transaction", "session is read-only"),
        ("25006",),
    ),
    Trouble(
        "is held by another program",
        "end the program that has a transaction open",
        ("database is locked", "database table is locked"),
        ("55P03",),
    ),
    Trouble(
        "is damaged",
        "gpuqueue doctor says how to save its contents",
        ("malformed", "file is not a database"),
        ("XX001", "XX002"),
    ),
    Trouble("has a disk that fails", "see the kernel's log (dmesg) on its machine", ("disk I/O error",), ("58030",)),
    Trouble(
        "cannot be opened", "is its directory there, and may this account use it?", ("unable to open database file",)
    ),
    # The message goes on: starting up, shutting down, in recovery mode, not accepting connections.
    Trouble("starts or stops just now", "wait for it", ("the database system is ",), ("57P03",)),
    Trouble(
        "has no connection left",
        "end some, or raise its max_connections",
        ("too many clients", "too many connections", "remaining connection slots"),
        ("53300",),
    ),
    Trouble(
        "does not let this account in",
        "correct the account and the password in GPUQUEUE_DATABASE_URL",
        ("authentication", "no password supplied", "no pg_hba.conf entry"),
        ("28P01", "28000"),
    ),
    Trouble(
        "does not give this account the privileges",
        "grant them, or use the account that made the tables",
        ("permission denied",),
        ("42501",),
    ),
)


def is_of_the_row(error: exc.DBAPIError) -> bool:
    """Return whether the database works and only rejects a row. Such an error must not look like an outage."""
    if isinstance(error, (exc.IntegrityError, exc.DataError)):
        return True
    return str(getattr(error.orig, "sqlstate", None) or "").startswith(_OF_THE_ROW)


def reason(error: BaseException) -> str:
    """Return the first line of the cause of *error*. Later lines may quote a row, and so an environment."""
    cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
    return next(iter(str(cause).splitlines()), "") or type(cause).__name__


def unreachable(where: str, error: BaseException | None) -> HistoryUnreachable:
    """Return the exception for the driver's *error* at the database *where*."""
    text, first = str(error), reason(error) if error is not None else ""
    code = getattr(error, "sqlstate", None)
    by_words = (each for each in TROUBLES if any(words in text for words in each.words))
    by_code = (each for each in TROUBLES if code in each.codes)
    trouble = next(by_words, None) or next(by_code, None)
    if trouble is None:
        return silent(where, first)
    reported = "" if trouble is _NO_TABLES else f" ({first})"
    return HistoryUnreachable(f"the history database at {where} {trouble.what}{reported}", trouble.remedy)


def silent(where: str, why: str) -> HistoryUnreachable:
    """Return the exception for a database that does not answer, with the reason *why*."""
    return HistoryUnreachable(
        f"the history database at {where} does not answer: {why}",
        "bring it back, or correct GPUQUEUE_DATABASE_URL. Jobs go on, and their history waits in the store",
    )
