"""The index that finds a part of a command or of a note among a million jobs, if the database supports it.

The index contains every three consecutive characters (a trigram) of these texts. A search selects the jobs that have
all trigrams of the text, and then checks each of them as a search without the index does. So the index changes only the
time of a search. It has no data of its own: it can be left out, and rebuilt from the jobs at any time.

In SQLite it is an FTS5 table. Triggers keep the table up to date, whichever program writes, so it is valid only while
all triggers exist. In PostgreSQL it is two indexes of the extension ``pg_trgm``. They follow each change in the same
transaction, and the planner knows their cost. Both can be unavailable: SQLite may be older than 3.34 or built without
FTS5, and an account may lack the right to create the extension.

A migration that alters columns of ``jobs`` must call :func:`drop` first: SQLite drops no column that a trigger names.
``migrate.upgrade`` then rebuilds the index.
"""

from __future__ import annotations

import logging
import sqlite3
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy import exc

log = logging.getLogger(__name__)

#: SQLite's table. The names of everything that belongs to it begin with this name.
TABLE = "jobs_text"
#: Without the texts and without the positions of trigrams, the index has a third of the size. The tokenizer is
#: case-sensitive: the triggers lower the texts with ``lower()``, which changes only ASCII letters, as the filter does.
_KIND = "fts5(command, note, content='', columnsize=0, detail=none, tokenize='trigram case_sensitive 1')"
_ADD = f"INSERT INTO {TABLE} (rowid, command, note) VALUES (new.id, lower(new.command), lower(new.note))"  # noqa: S608 - names of our own
_REMOVE = (
    f"INSERT INTO {TABLE} ({TABLE}, rowid, command, note) "  # noqa: S608 - names of our own
    "VALUES ('delete', old.id, lower(old.command), lower(old.note))"
)
_CHANGED = "old.id IS NOT new.id OR old.command IS NOT new.command OR old.note IS NOT new.note"
_TRIGGERS = {
    f"{TABLE}_added": f"AFTER INSERT ON jobs BEGIN {_ADD}; END",
    f"{TABLE}_changed": f"AFTER UPDATE OF id, command, note ON jobs WHEN {_CHANGED} BEGIN {_REMOVE}; {_ADD}; END",
    f"{TABLE}_gone": f"AFTER DELETE ON jobs BEGIN {_REMOVE}; END",
}
#: PostgreSQL's indexes, by name: the column, and which jobs. Few jobs have a note.
_INDEXES = {"ix_jobs_command_trigrams": ("command", ""), "ix_jobs_note_trigrams": ("note", "WHERE note IS NOT NULL")}
_EXTENSION = "pg_trgm"


def belongs(name: str | None) -> bool:
    """Return whether the table or index *name* is the text index or a part of it."""
    return name is not None and (name in _INDEXES or name == TABLE or name.startswith(f"{TABLE}_"))


@lru_cache(maxsize=1)
def known_to_sqlite() -> bool:
    """Return whether this Python's SQLite supports the index: 3.34 or newer, and built with FTS5."""
    memory = sqlite3.connect(":memory:")
    try:
        memory.execute(f"CREATE VIRTUAL TABLE probe USING {_KIND}")
    except sqlite3.Error:
        return False
    finally:
        memory.close()
    return True


def is_there(connection: sa.Connection) -> bool:
    """Return whether the index exists and is up to date."""
    if connection.dialect.name == "sqlite":
        return known_to_sqlite() and _has_triggers(connection)
    name = next(iter(_INDEXES))
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)"
    return bool(connection.scalar(sa.text(valid), {"name": name}))


def _has_triggers(connection: sa.Connection) -> bool:
    names = connection.scalars(sa.text("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'jobs'"))
    return set(_TRIGGERS) <= set(names)


def make(connection: sa.Connection) -> bool:
    """Create the index of the existing jobs. Return False if the database does not support it."""
    if connection.dialect.name == "sqlite":
        return _make_in_sqlite(connection)
    return _make_in_postgresql(connection)


def _make_in_sqlite(connection: sa.Connection) -> bool:
    drop(connection)
    if not known_to_sqlite():
        return False
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {TABLE}")
    connection.exec_driver_sql(f"CREATE VIRTUAL TABLE {TABLE} USING {_KIND}")
    everything = "SELECT id, lower(command), lower(note) FROM jobs ORDER BY id"
    connection.exec_driver_sql(f"INSERT INTO {TABLE} (rowid, command, note) {everything}")
    for name, does in _TRIGGERS.items():
        connection.exec_driver_sql(f"CREATE TRIGGER {name} {does}")
    return True


def _make_in_postgresql(connection: sa.Connection) -> bool:
    schema = _schema_of_extension(connection) or _create_extension(connection)
    if schema is None:
        return False
    for name, (column, which) in _INDEXES.items():
        of = f"USING gin ({column} {schema}.gin_trgm_ops)"
        connection.exec_driver_sql(f"CREATE INDEX IF NOT EXISTS {name} ON jobs {of} {which}")
    return True


def _create_extension(connection: sa.Connection) -> str | None:
    """Create the extension and return its schema. Return None if it is missing or the account may not create it."""
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"CREATE EXTENSION {_EXTENSION}")
    except exc.DBAPIError as error:
        if error.connection_invalidated:
            raise
        log.info("the history database has no text index: %s", next(iter(str(error.orig).splitlines()), ""))
        return None
    return _schema_of_extension(connection)


def _schema_of_extension(connection: sa.Connection) -> str | None:
    """Return the schema of the extension, quoted for SQL, or None if the extension does not exist."""
    where = sa.text("SELECT quote_ident(nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace"
                    " WHERE extname = :name")  # fmt: skip
    found: str | None = connection.scalar(where, {"name": _EXTENSION})
    return found


def drop(connection: sa.Connection) -> None:
    """Take the index out of use.

    In SQLite only the triggers are dropped: a program without FTS5 cannot drop the table.
    """
    if connection.dialect.name == "postgresql":
        for name in _INDEXES:
            connection.exec_driver_sql(f"DROP INDEX IF EXISTS {name}")
        return
    for name in _TRIGGERS:
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}")
