"""Brings a database to this version's tables, with Alembic. Several processes may do so at once."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from gpuqueue.errors import HistoryNewer
from gpuqueue.history import text_index
from gpuqueue.history.connect import file_of, open_engine, reading, shown, writing

if TYPE_CHECKING:
    from collections.abc import Iterator

#: PostgreSQL's advisory lock for our migrations: "gpuqueue" in ASCII, a number that other programs do not use.
_LOCK = int.from_bytes(b"gpuqueue", "big")
#: Alembic keeps the running migration in module globals, so a process runs one migration at a time.
_one_at_a_time = threading.Lock()


def upgrade(url: str) -> None:
    """Bring the database at *url* to this version's tables, completely or not at all.

    A missing text index is created if the database supports it now.

    Raises:
        HistoryNewer: the tables are newer than this gpuqueue.
        HistoryUnreachable: the database does not answer.

    """
    with _configured(url) as config:
        command.upgrade(config, "head")
        connection = config.attributes["connection"]
        if not text_index.is_there(connection):
            text_index.make(connection)


def current(url: str) -> str | None:
    """Return the revision of the database at *url*, or None if it has no tables or its file does not exist.

    Raises:
        HistoryUnreachable: the database does not answer.

    """
    engine = open_engine(url)
    file = file_of(engine.url)
    if file is not None and not file.exists():
        return None
    try:
        with reading(engine) as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


def refuse_newer(url: str) -> None:
    """Check that this version knows the tables of the database at *url*.

    Raises:
        HistoryNewer: the tables are of an unknown revision.
        HistoryUnreachable: the database does not answer.

    """
    revision = current(url)
    if revision is None:
        return
    try:
        ScriptDirectory.from_config(_config()).get_revision(revision)
    except CommandError as error:
        raise _newer(url) from error


def _newer(url: str) -> HistoryNewer:
    return HistoryNewer(
        f"the history database at {shown(sa.make_url(url))} is newer than this gpuqueue", "upgrade gpuqueue"
    )


def _script_location() -> Path:
    """Return the directory of the migrations: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parent.parent
    packaged = package / "migrations"
    return packaged if packaged.is_dir() else package.parent / "migrations"


def _config() -> Config:
    config = Config()
    # A path may contain a percent sign, which the configuration parser would interpret.
    config.set_main_option("script_location", str(_script_location()).replace("%", "%%"))
    return config


@contextmanager
def _configured(url: str) -> Iterator[Config]:
    """Yield Alembic's configuration, with a connection in a transaction that excludes other migrations."""
    logger = logging.getLogger("alembic")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)  # a line for each table is noise for users
    engine = open_engine(url, foreign_keys=False, make=True)
    config = _config()
    try:
        with _one_at_a_time, writing(engine, patient=True) as connection:
            if connection.dialect.name == "postgresql":  # SQLite has one writer at a time anyway
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            config.attributes["connection"] = connection
            yield config
    except CommandError as error:
        if "Can't locate revision" not in str(error):
            raise
        raise _newer(url) from error
    finally:
        engine.dispose()
