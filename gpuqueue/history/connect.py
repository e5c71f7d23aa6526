"""Opens a SQLite or PostgreSQL database with durable commits, limits of time and one-line error messages.

Whatever goes wrong with the database raises ``HistoryUnreachable``. A transaction has changed nothing then. Only errors
of a row, such as a violated constraint, are raised as they are.

A PostgreSQL server may not answer: stopped, swapped out, or behind a cut wire. No setting of the driver covers this
case. ``connect_timeout`` applies only until the connection is open, the server itself enforces ``statement_timeout``,
and the kernel of a stopped server still acknowledges every packet.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import event, exc

from gpuqueue.errors import START_ONE, HistoryUnreachable, install_extra, no_queue
from gpuqueue.history.revision import REVISION
from gpuqueue.text.sanitize import without_password

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: How long to wait for another process's transaction in SQLite, and for a connection to PostgreSQL, in seconds.
WAIT_S = 10
#: Execution option of a connection that writes.
WRITES = "gpuqueue_writes"
#: Settings of PostgreSQL for a transaction that writes. The outbox is trimmed after the commit, so a commit waits for
#: the disk even if the server has ``synchronous_commit`` off. A recorder that is stopped midway must not block the
#: other recorders, so an idle transaction times out. All rows are found by a key. PostgreSQL caches plans, and a plan
#: that scans whole tables, made while they are small, is soon slow; so such plans are off.
_SAFELY = sa.text(
    "SELECT set_config('idle_in_transaction_session_timeout', :idle, true),"
    " set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'local'), true),"
    " set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),"
    " set_config('enable_mergejoin', 'off', true)"
)
#: Key in the ``info`` of a SQLite connection: the identity of the file that it has open.
_FILE = "gpuqueue_file"
#: Time limit of one transaction, in seconds. A batch takes milliseconds, a long history a few seconds.
ANSWER_S = 30.0
#: Time limit for the check of a pooled connection, in seconds.
PING_S = 10.0
#: Classes of SQLSTATE (its first two characters) for errors of a row, not of the server: 22 a value, 23 a constraint,
#: 44 a view's check, 54 too long for an index, P0 a trigger.
_OF_THE_ROW = ("22", "23", "44", "54", "P0")


def open_engine(url: str, *, foreign_keys: bool = True, make: bool = False) -> sa.Engine:
    """Return an engine for the database at *url*, without connecting.

    A missing SQLite file is created only if *make* is true. A reader with a typing error in the address leaves no file.

    Migrations of SQLite switch *foreign_keys* off: SQLite alters a table by copying it and dropping the old table,
    which would delete the rows that refer to it.

    Error messages omit the parameters of statements, because environments are among them.
    """
    parsed = _parsed(url)
    try:
        if parsed.get_backend_name() == "sqlite":
            engine = _sqlite(parsed, foreign_keys=foreign_keys, make=make)
        else:
            wait = {} if "connect_timeout" in parsed.query else {"connect_timeout": WAIT_S}
            engine = with_pings(sa.create_engine(parsed, connect_args=wait, hide_parameters=True))
        engine.dialect.create_connect_args(parsed)  # validates the rest of the address now, not at the first connection
    except (ImportError, exc.NoSuchModuleError) as error:
        raise HistoryUnreachable(
            f"no driver for the history database at {shown(parsed)}: {install_extra('postgres')}"
        ) from error
    except (exc.ArgumentError, ValueError) as error:
        why = next(iter(str(error).splitlines()), "")
        raise HistoryUnreachable(
            f"the address of the history database {shown(parsed)} cannot be used: {why}"
        ) from error
    return engine


def _parsed(url: str) -> sa.URL:
    """Return the parts of *url*, with the driver that this version uses."""
    try:
        url.encode("utf-8")
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):  # ValueError: a port that is no number, perhaps the end of a password
        raise HistoryUnreachable("the database URL cannot be read: write sqlite:///PATH or postgresql://…") from None
    if parsed.drivername in {"postgresql", "postgres"}:
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername.partition("+")[0] not in {"sqlite", "postgresql"}:
        raise HistoryUnreachable(
            f"the history database at {shown(parsed)} cannot be used: only SQLite and PostgreSQL can"
        )
    return parsed


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Yield a connection for reading."""
    with _explained(engine), engine.connect() as connection, _bounded(connection, ANSWER_S):
        yield connection


@contextmanager
def writing(engine: sa.Engine, *, patient: bool = False) -> Iterator[sa.Connection]:
    """Yield a connection in a transaction that is committed at the end. *patient* removes the time limit."""
    limit_s = None if patient else ANSWER_S
    with (
        _explained(engine),
        engine.connect().execution_options(**{WRITES: True}) as connection,
        _bounded(connection, limit_s),
    ):
        with connection.begin():
            if limit_s is not None and connection.dialect.name == "postgresql":
                connection.execute(_SAFELY, {"idle": str(round(limit_s * 1000))})
            yield connection
        if connection.dialect.name == "sqlite" and connection.info[_FILE] != _identity(engine.url):
            raise HistoryUnreachable(
                f"the history database at {shown(engine.url)} was replaced while it was written to"
            )


def _bounded(connection: sa.Connection, limit_s: float | None) -> AbstractContextManager[None]:
    """Limit the time of the work with *connection*.

    SQLite is not limited here: it has its own timeout, and no server.
    """
    if limit_s is None or connection.dialect.name != "postgresql":
        return nullcontext()
    return answer_bounded(connection.connection.driver_connection, limit_s)


def check_revision(connection: sa.Connection) -> None:
    """Check that the tables are of this version."""
    revision = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    where = f"the history database at {shown(connection.engine.url)}"
    if revision is None:
        raise HistoryUnreachable(f"{where} has no tables yet", "run gpuqueue up, or gpuqueue db upgrade")
    if revision < REVISION:
        raise HistoryUnreachable(f"{where} is older ({revision}) than this gpuqueue", "run gpuqueue db upgrade")
    if revision > REVISION:
        raise HistoryUnreachable(f"{where} is newer ({revision}) than this gpuqueue", "upgrade gpuqueue")


def file_of(url: sa.URL) -> Path | None:
    """Return the file of a SQLite database. None for a database in memory, a ``file:`` URI and PostgreSQL."""
    if url.get_backend_name() != "sqlite" or url.database in {None, "", ":memory:"}:
        return None
    return None if str(url.database).startswith("file:") else Path(str(url.database))


def absent(url: sa.URL) -> HistoryUnreachable:
    """Return the error for a SQLite file that does not exist."""
    path = file_of(url)
    if path is not None and not path.parent.exists():
        return HistoryUnreachable(no_queue(path.parent), f"{START_ONE} or GPUQUEUE_DATABASE_URL")
    return HistoryUnreachable(
        f"the history database at {shown(url)} is not there yet",
        "run gpuqueue up, or gpuqueue db upgrade; or correct GPUQUEUE_STATE_DIR or GPUQUEUE_DATABASE_URL",
    )


def shown(url: sa.URL) -> str:
    """Return *url* without its password, for messages."""
    return without_password(url.render_as_string(hide_password=True))


@contextmanager
def _explained(engine: sa.Engine) -> Iterator[None]:
    try:
        yield
    except AnswerLate as error:
        raise silent(shown(engine.url), str(error)) from error
    except exc.DBAPIError as error:
        if is_of_the_row(error):
            raise
        raise unreachable(shown(engine.url), error.orig) from error
    except (exc.TimeoutError, exc.DisconnectionError) as error:
        raise silent(shown(engine.url), str(error)) from error


def _sqlite(url: sa.URL, *, foreign_keys: bool, make: bool) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": WAIT_S}, hide_parameters=True)

    @event.listens_for(engine, "do_connect")
    def _find(_dialect: Any, _record: Any, cargs: Sequence[Any], _cparams: Any) -> None:
        if file_of(url) is not None:
            _find_file(url, Path(str(cargs[0])), make=make)

    @event.listens_for(engine, "connect")
    def _set_up(connection: Any, _record: Any) -> None:
        # The driver would begin a transaction only before the first change. _begin does it instead.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {WAIT_S * 1000:.0f}")
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode = WAL")
        # Not NORMAL: the outbox is trimmed after the commit, and a power cut must not lose both copies.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")

    @event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A reader that becomes a writer midway fails at once if another process wrote. So a writer locks at the start.
        writes = connection.get_execution_options().get(WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    _check_the_path(engine)
    return engine


def _find_file(url: sa.URL, path: Path, *, make: bool) -> None:
    """Check that the file of a database exists. If *make* is true, create it.

    Only its owner has access to a new file: it will hold environments, which contain secrets.
    """
    try:
        if path.exists():  # never open it here: closing it would drop the locks that SQLite holds for this process
            return
        if not make:
            raise absent(url)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise HistoryUnreachable(f"the history database at {shown(url)} cannot be made: {why}") from error


def _check_the_path(engine: sa.Engine) -> None:
    """Reconnect if the database file was moved away, or replaced, as by a backup."""

    @event.listens_for(engine, "connect")
    def _remember(_connection: Any, record: Any) -> None:
        record.info[_FILE] = _identity(engine.url)

    @event.listens_for(engine, "checkout")
    def _compare(_connection: Any, record: Any, _proxy: Any) -> None:
        if record.info[_FILE] != _identity(engine.url):
            raise exc.DisconnectionError("another file is in its place")


def _identity(url: sa.URL) -> tuple[int, int] | None:
    """Return the device and inode numbers of the file behind *url*, None if there is no file."""
    try:
        found = Path(str(url.database)).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


class AnswerLate(Exception):
    """The server did not answer in time, and the connection was shut down."""


@contextmanager
def answer_bounded(driver_connection: Any, limit_s: float) -> Iterator[None]:
    """Shut down *driver_connection* if the work with it takes longer than *limit_s* seconds.

    Raises:
        AnswerLate: the limit was exceeded. Whether a commit succeeded is unknown.

    """
    late = threading.Event()

    def give_up() -> None:
        late.set()
        with suppress(OSError), socket.socket(fileno=os.dup(driver_connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)  # wakes a thread that is blocked on the socket

    timer = threading.Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if late.is_set():
            raise AnswerLate(f"no answer within {limit_s:g} s") from error
        raise
    finally:
        timer.cancel()


def with_pings(engine: sa.Engine) -> sa.Engine:
    """Check each pooled connection before its use: a restarted server leaves dead connections in the pool."""

    @event.listens_for(engine, "checkout")
    def _ask(connection: Any, _record: Any, _proxy: Any) -> None:
        try:
            with answer_bounded(connection, PING_S):
                engine.dialect.do_ping(connection)
        except Exception as error:
            raise exc.DisconnectionError(str(error)) from error

    return engine


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
