"""Facts about the history database, for health checks. Collecting them changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc

from gpuqueue.errors import HistoryUnreachable
from gpuqueue.history import notifications, queries, text_index
from gpuqueue.history.connect import absent, file_of, open_engine, reading, shown, writing
from gpuqueue.history.revision import REVISION
from gpuqueue.history.tables import dead_letters, jobs
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState, WaitReason

if TYPE_CHECKING:
    from gpuqueue.model.event import Cursor

#: Most jobs that are listed by id.
MOST_NAMED = 10
#: Instructions of SQLite's virtual machine between two checks of the time limit.
_STEPS = 10_000
#: How long to wait for a lock of SQLite, in seconds. A writer that holds the lock longer blocks the recorder as well.
_LOCKED_S = 2.0
#: A notification that is unsent this long after its job's end is late. One that was given up is reported for this long.
LATE, WEEK = timedelta(minutes=2), timedelta(days=7)


class Count(NamedTuple):
    """A number of jobs in trouble, one of them, and its reason. There may be more if not all were read."""

    number: int = 0
    job_id: int | None = None
    why: str | None = None
    is_whole: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What the tables of this version hold."""

    cursor: Cursor | None
    #: The first jobs that are held because they were lost too often.
    lost_too_often: tuple[int, ...]
    #: Dead letters, with the first one.
    dead_letters: Count
    #: Late notifications to targets of the site, or to anything that nobody has tried to reach, with the first one.
    late: Count
    #: Notifications to targets of the site that were given up in the last week, with the last one.
    given_up: Count
    #: Those to URLs of jobs that failed: late ones and those given up in the last week, with one of them. A mistake in
    #: such a URL is no trouble of the site.
    to_urls: Count
    #: Whether the text index exists and is up to date.
    finds_texts: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseFacts:
    """The state of the database. None means unknown, unless the field says otherwise."""

    #: Name and version, such as ``SQLite 3.45.1``.
    product: str
    #: The address, without the password.
    where: str
    #: The file, if the database is SQLite.
    path: Path | None
    #: The revision of the tables, None if there are none.
    revision: str | None
    size_bytes: int | None
    #: Why the database cannot be written to, None if it can.
    refusal: str | None
    #: The damage in a SQLite file, empty if there is none. None if the check did not finish, and for PostgreSQL.
    damage: str | None
    #: None if the file is damaged, or the tables are not of this version.
    contents: Contents | None


def database_facts(url: str, *, integrity_s: float) -> DatabaseFacts:
    """Return the facts about the history database at *url*.

    The integrity check takes at most *integrity_s* seconds.
    """
    engine = open_engine(url)
    path = file_of(engine.url)
    if path is not None and not path.exists():
        engine.dispose()
        raise absent(engine.url)
    try:
        with reading(engine) as connection:
            if path is not None:  # the pool reuses this connection in _refusal
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {_LOCKED_S * 1000:.0f}")
            revision = _revision(connection)
            size_bytes, product = _size_bytes(connection, path), _product(connection)
            damage = None if path is None else _damage(connection, integrity_s)
            contents = _contents(connection) if revision == REVISION and not damage else None
        return DatabaseFacts(
            product=product,
            where=shown(engine.url),
            path=path,
            revision=revision,
            size_bytes=size_bytes,
            refusal=_refusal(engine, path),
            damage=damage,
            contents=contents,
        )
    finally:
        engine.dispose()


def _contents(connection: sa.Connection) -> Contents:
    now = datetime.now(timezone.utc)
    late = notifications.unreported(connection, before=now - LATE)
    given_up = notifications.given_up(connection, since=now - WEEK)
    late_here = [message for message in late if not message.is_to_url or message.trouble is None]
    failed_urls = [message for message in (*given_up, *late) if message.is_to_url and message.trouble is not None]
    all_late, all_given_up = (len(messages) < notifications.MAX_READ for messages in (late, given_up))
    return Contents(
        cursor=queries.cursor(connection),
        lost_too_often=_lost_too_often(connection),
        dead_letters=_dead_letters(connection),
        late=_count(late_here, is_whole=all_late),
        given_up=_count([message for message in given_up if not message.is_to_url], is_whole=all_given_up),
        to_urls=_count(failed_urls, is_whole=all_late and all_given_up),
        finds_texts=text_index.is_there(connection),
    )


def _count(undelivered: Sequence[notifications.Undelivered], *, is_whole: bool) -> Count:
    """Return their number, with the first one."""
    first = next(iter(undelivered), None)
    return Count() if first is None else Count(len(undelivered), first.job_id, first.trouble, is_whole)


def _product(connection: sa.Connection) -> str:
    version = ".".join(str(number) for number in connection.dialect.server_version_info or ())
    return f"{'SQLite' if connection.dialect.name == 'sqlite' else 'PostgreSQL'} {version}"


def _revision(connection: sa.Connection) -> str | None:
    """Return the revision of the tables, None if there are none."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return found


def _size_bytes(connection: sa.Connection, path: Path | None) -> int | None:
    if path is not None:
        return path.stat().st_size
    if connection.dialect.name == "sqlite":
        return None
    return int(connection.scalar(sa.text("SELECT pg_database_size(current_database())")) or 0)


def _lost_too_often(connection: sa.Connection) -> tuple[int, ...]:
    held = (jobs.c.state == JobState.HELD.value) & (jobs.c.reason == WaitReason.LOST_TOO_OFTEN.value)
    found = connection.execute(sa.select(jobs.c.id).where(held).order_by(jobs.c.id).limit(MOST_NAMED))
    return tuple(int(row.id) for row in found)


def _dead_letters(connection: sa.Connection) -> Count:
    number = int(connection.scalar(sa.select(sa.func.count()).select_from(dead_letters)) or 0)
    columns = dead_letters.c.job_id, dead_letters.c.error
    first = connection.execute(sa.select(*columns).order_by(dead_letters.c.at).limit(1)).first()
    return Count(number, *first) if first is not None else Count()


def _damage(connection: sa.Connection, limit_s: float) -> str | None:
    """Return what SQLite's quick check finds: empty if nothing, None if it takes longer than *limit_s* seconds.

    The check reads the whole file. It does not keep the recorder from writing, because readers never do.
    """
    file: Any = connection.connection.driver_connection
    deadline_s = time.monotonic() + limit_s
    file.set_progress_handler(lambda: int(time.monotonic() > deadline_s), _STEPS)
    try:
        word = str(connection.scalar(sa.text("PRAGMA quick_check(1)")))
    except exc.DBAPIError as error:
        if "interrupted" in str(error.orig):
            return None
        return str(error.orig)
    finally:
        file.set_progress_handler(None, 0)
    return "" if word == "ok" else word


def _refusal(engine: sa.Engine, path: Path | None) -> str | None:
    """Return why the database cannot be written to, None if it can.

    The check begins a transaction and writes nothing.
    """
    if path is not None and not os.access(path.parent, os.W_OK):
        return f"{path.parent} may not be written, and SQLite keeps files beside its own"
    try:
        with writing(engine) as connection:
            if engine.dialect.name == "sqlite":
                return None
            if connection.scalar(sa.text("SHOW transaction_read_only")) == "on":
                return "it is read-only, as a standby is"
            if not sa.inspect(connection).has_table("jobs"):
                return None
            asked = sa.text("SELECT has_table_privilege('jobs', 'INSERT') AND has_table_privilege('jobs', 'UPDATE')")
            return None if connection.scalar(asked) else "this account may not write into its tables"
    except HistoryUnreachable as error:
        return error.what.partition(f"the history database at {shown(engine.url)} ")[2] or error.what
