"""A history database with gpuqueue's tables, made once for each test process and copied from then on."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from gpuqueue.history import migrate
from gpuqueue.history.connect import open_engine, writing
from gpuqueue.history.tables import metadata


@cache
def template() -> Path:
    """Return a SQLite file with gpuqueue's tables, to copy."""
    directory = Path(tempfile.mkdtemp(prefix="gpuqueue-template-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "template.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


def empty_tables(database_url: str) -> None:
    """Delete all rows of the database, as if its tables were new."""
    engine = open_engine(database_url)
    with writing(engine) as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())
    engine.dispose()


def make_tables(database_url: str) -> None:
    """Update the tables of the database; a missing SQLite file is copied from the template."""
    path = Path(database_url.removeprefix("sqlite:///"))
    if database_url.startswith("sqlite:///") and "?" not in database_url and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(template(), path)
    else:
        migrate.upgrade(database_url)
