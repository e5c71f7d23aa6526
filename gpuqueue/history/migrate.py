"""Brings a database to this version's tables, with Alembic. Any number of processes may do it at once."""

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

from gpuqueue.errors import BookUnreachable
from gpuqueue.history import text_index
from gpuqueue.history.connect import file_of, open_engine, reading, shown, writing
from gpuqueue.history.revision import REVISION

if TYPE_CHECKING:
    from collections.abc import Iterator

#: PostgreSQL's advisory lock for our migrations: any number that nobody else uses there ("gpuqueue" in ASCII).
_LOCK = int.from_bytes(b"gpuqueue", "big")
#: Alembic keeps the running migration in module globals: one at a time in a process.
_one_at_a_time = threading.Lock()


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database at *url* up to *revision*, all the way or not at all.

    The newest tables get their index of texts back where it was left out and can be had now.

    Raises:
        BookUnreachable: it does not answer, or its tables are newer than this gpuqueue.

    """
    with _configured(url) as config:
        command.upgrade(config, revision)
        connection: sa.Connection = config.attributes["connection"]
        if connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == REVISION:
            text_index.mend(connection)


def downgrade(url: str, revision: str) -> None:
    """Bring the database at *url* down to *revision* (``base``: no tables), all the way or not at all.

    Raises:
        BookUnreachable: it does not answer, or its tables are newer than this gpuqueue.

    """
    with _configured(url) as config:
        command.downgrade(config, revision)


def current(url: str) -> str | None:
    """Return the revision of the database at *url*, or None if it has no tables, or is a file that is not there.

    Raises:
        BookUnreachable: it does not answer.

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


def head() -> str:
    """Return the revision that this version wants."""
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    if newest is None:
        raise AssertionError("there are no migrations beside this gpuqueue")  # pragma: no cover - a broken package
    return newest


def _script_location() -> Path:
    """Return where the migrations lie: in the package when it is installed, beside it in a checkout."""
    package = Path(__file__).parent.parent
    packaged = package / "migrations"
    return packaged if packaged.is_dir() else package.parent / "migrations"


def _config() -> Config:
    config = Config()
    # A path may hold a percent sign, which the configuration parser would take for its own.
    config.set_main_option("script_location", str(_script_location()).replace("%", "%%"))
    return config


@contextmanager
def _configured(url: str) -> Iterator[Config]:
    """Give Alembic's configuration with a connection whose transaction nobody else can be in at the same time."""
    logger = logging.getLogger("alembic")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)  # who runs a worker does not want a report of each table
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
        raise BookUnreachable(
            f"the book at {shown(engine.url)} is newer than this gpuqueue: upgrade gpuqueue"
        ) from error
    finally:
        engine.dispose()
