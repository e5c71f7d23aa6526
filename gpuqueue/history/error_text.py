"""Explains a database error in one line, and names a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import exc

from gpuqueue.errors import HistoryUnreachable
from gpuqueue.lazy.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Classes of SQLSTATE (its first two characters) for errors of a row, not of the server: 22 a value, 23 a constraint,
#: 44 a view's check, 54 too long for an index, P0 a trigger.
_OF_THE_ROW = ("22", "23", "44", "54", "P0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """One kind of database error: how it is recognised, what it means, what to do.

    ``words`` are searched in the message first, because SQLite has no codes and PostgreSQL reports none while
    connecting. ``codes`` are SQLSTATEs. They recognise a PostgreSQL error whose message is in another language.
    """

    codes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    what: str
    remedy: str


TROUBLES = (
    Trouble(
        words=("no such table: alembic_version", 'relation "alembic_version" does not exist'),
        what="has no tables yet",
        remedy="run gpuqueue up, or gpuqueue db upgrade",
    ),
    Trouble(
        codes=("42P01", "42703"),
        words=("no such table", "no such column", "has no column named"),
        what="has other tables than this gpuqueue",
        remedy="run gpuqueue db upgrade, or bring back its last backup",
    ),
    Trouble(
        codes=("53100",),
        words=("database or disk is full", "No space left on device"),
        what="cannot be written, its disk is full",
        remedy="free some space there",
    ),
    Trouble(
        codes=("25006",),
        words=("readonly database", "read-only transaction", "session is read-only"),
        what="can only be read",
        remedy="let the recorder's account write it (for SQLite its directory as well), or name the primary server",
    ),
    Trouble(
        codes=("55P03",),
        words=("database is locked", "database table is locked"),
        what="is held by another program",
        remedy="end what has it open in a transaction",
    ),
    Trouble(
        codes=("XX001", "XX002"),
        words=("malformed", "file is not a database"),
        what="is damaged",
        remedy="gpuqueue doctor says how to save what is in it",
    ),
    Trouble(
        codes=("58030",),
        words=("disk I/O error",),
        what="has a disk that fails",
        remedy="see the kernel's log (dmesg) on its machine",
    ),
    Trouble(
        words=("unable to open database file",),
        what="cannot be opened",
        remedy="is its directory there, and may this account use it?",
    ),
    Trouble(
        codes=("57P03",),
        words=("the database system is ",),  # starting up, shutting down, in recovery mode, not accepting connections
        what="starts or stops just now",
        remedy="wait for it",
    ),
    Trouble(
        codes=("53300",),
        words=("too many clients", "too many connections", "remaining connection slots"),
        what="has no connection left",
        remedy="end some, or raise its max_connections",
    ),
    Trouble(
        codes=("28P01", "28000"),
        words=("password authentication failed", "no password supplied", "no pg_hba.conf entry", "authentication"),
        what="does not let this account in",
        remedy="set account and password in GPUQUEUE_DATABASE_URL right",
    ),
    Trouble(
        codes=("42501",),
        words=("permission denied",),
        what="does not give this account the rights",
        remedy="grant them, or use the account that made the tables",
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
    for trouble in _candidates(getattr(error, "sqlstate", None), text):
        reported = "" if trouble is TROUBLES[0] else f" ({first})"
        return HistoryUnreachable(f"the history database at {where} {trouble.what}{reported}", trouble.remedy)
    return silent(where, first)


def silent(where: str, why: str) -> HistoryUnreachable:
    """Return the exception for a database that does not answer, with the reason *why*."""
    return HistoryUnreachable(
        f"the history database at {where} does not answer: {why}",
        "bring it back, or set GPUQUEUE_DATABASE_URL right. Jobs go on, and their history waits in the store",
    )


def _candidates(code: str | None, text: str) -> Iterator[Trouble]:
    yield from (trouble for trouble in TROUBLES if any(words in text for words in trouble.words))
    yield from (trouble for trouble in TROUBLES if code in trouble.codes)
