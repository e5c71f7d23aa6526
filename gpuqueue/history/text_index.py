"""The index that finds a part of a command or of a note among a million jobs, where the database can have one.

It knows every three characters in a row (a trigram) of these texts. What is looked for is found among the jobs that
have all of its trigrams; whether a job really has it is then judged as it is without an index, so that there is no
difference but the time. It holds nothing of its own: it can be left out, and made again from the jobs at any time.

SQLite has it as a table of FTS5 that triggers keep in step, whoever writes; it is as good as its triggers are there.
PostgreSQL has two indexes of the extension ``pg_trgm``, and not a table of words of our own: they follow each change
in the same transaction, and the planner knows what they cost beside the others. Neither is there everywhere: SQLite
may be older than 3.34 or made without FTS5, and an account may not be allowed to create the extension.

A migration that alters columns of ``jobs`` calls :func:`leave` first: SQLite drops no column that a trigger names. What
it leaves, :func:`mend` makes anew at the end of the upgrade.
"""

from __future__ import annotations

import logging
import sqlite3
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy import exc

log = logging.getLogger(__name__)

#: SQLite's table, and what the names of all that belongs to it begin with.
TABLE = "jobs_text"
#: Without the texts themselves, and without where in them a trigram stands: a third of the size. Case is not the
#: tokenizer's: ours is that of the filter, where only ASCII letters have one.
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
#: PostgreSQL's indexes, by name: the column, and which jobs. Few have a note.
_INDEXES = {"ix_jobs_command_trigrams": ("command", ""), "ix_jobs_note_trigrams": ("note", "WHERE note IS NOT NULL")}
_EXTENSION = "pg_trgm"


def belongs(name: str | None) -> bool:
    """Return whether the table or index called *name* is the text index, or a part of it."""
    return name is not None and (name in _INDEXES or name == TABLE or name.startswith(f"{TABLE}_"))


@lru_cache(maxsize=1)
def known_to_sqlite() -> bool:
    """Return whether the SQLite of this Python can have the index: it is 3.34 or newer, and made with FTS5."""
    memory = sqlite3.connect(":memory:")
    try:
        memory.execute(f"CREATE VIRTUAL TABLE probe USING {_KIND}")
    except sqlite3.Error:
        return False
    finally:
        memory.close()
    return True


def is_there(connection: sa.Connection) -> bool:
    """Return whether the index can be asked, and is in step with the jobs."""
    if connection.dialect.name == "sqlite":
        return known_to_sqlite() and _has_triggers(connection)
    name = next(iter(_INDEXES))
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)"
    return bool(connection.scalar(sa.text(valid), {"name": name}))


def _has_triggers(connection: sa.Connection) -> bool:
    names = connection.scalars(sa.text("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'jobs'"))
    return set(_TRIGGERS) <= set(names)


def make(connection: sa.Connection) -> bool:
    """Make the index of the jobs that are there; return False where the database cannot have it."""
    if connection.dialect.name == "sqlite":
        return _make_in_sqlite(connection)
    return _make_in_postgresql(connection)


def _make_in_sqlite(connection: sa.Connection) -> bool:
    leave(connection)
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
    """Return the schema of the extension once it is there, None if this server does not have it or we may not."""
    try:
        with connection.begin_nested():
            connection.exec_driver_sql(f"CREATE EXTENSION {_EXTENSION}")
    except exc.DBAPIError as error:
        if error.connection_invalidated:
            raise
        log.info("the book goes without an index of texts: %s", next(iter(str(error.orig).splitlines()), ""))
        return None
    return _schema_of_extension(connection)


def _schema_of_extension(connection: sa.Connection) -> str | None:
    """Return where the extension was put, as one writes it in SQL, None if it is not there."""
    where = sa.text("SELECT quote_ident(nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = extnamespace"
                    " WHERE extname = :name")  # fmt: skip
    found: str | None = connection.scalar(where, {"name": _EXTENSION})
    return found


def mend(connection: sa.Connection) -> None:
    """Make the index where it is missing and can be had: it was left out before, or a table was made anew."""
    if not is_there(connection):
        make(connection)


def drop(connection: sa.Connection) -> None:
    """Take the index away. The extension stays: somebody else may use it."""
    if connection.dialect.name == "postgresql":
        for name in _INDEXES:
            connection.exec_driver_sql(f"DROP INDEX IF EXISTS {name}")
        return
    leave(connection)
    if known_to_sqlite():  # no other SQLite can even drop it; there it stays, and nobody asks it
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {TABLE}")


def leave(connection: sa.Connection) -> None:
    """Keep SQLite's index in step no longer, so that jobs can be written by a program that knows no FTS5."""
    for name in _TRIGGERS:
        connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}")
