"""Writes many rows of one table, by the fastest method for each database.

SQLAlchemy's ``executemany`` looks up each value of each row by its name, and sends PostgreSQL one message per row. That
took longer than the work of the database. Therefore SQLite gets tuples for a statement that is compiled once, and
PostgreSQL gets all rows as one JSON text. The result is the same as with a plain INSERT or UPDATE.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gpuqueue.history.tables import SafeText, UtcDateTime, safe
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from gpuqueue.history.columns import Row

    Convert = Callable[[Any], Any]
    Columns = tuple[str, ...]

#: Dialects for compiling and converting. The dialects of the connections give the same results.
_SQLITE, _POSTGRESQL = sqlite.dialect(), postgresql.dialect()  # type: ignore[no-untyped-call] # they have no types
#: The parameter that carries all rows to PostgreSQL.
_ROWS = "rows"
#: Most characters in the parameter ``rows``. PostgreSQL accepts no text of 1 GiB, and needs several times the memory of
#: a text to parse it.
_MOST_TEXT = 16 * MIB
_UTC, _WITHOUT_ZONE = UtcDateTime(), len("2026-11-01 00:00:00.000000")


def insert(connection: sa.Connection, table: sa.Table, rows: Collection[Row]) -> None:
    """Insert *rows*, which all have the same columns. Skip rows that exist already."""
    if rows:
        plan = _insertion(table, connection.dialect.name, tuple(next(iter(rows))), replace=False)
        plan.run(connection, rows)


def put(connection: sa.Connection, table: sa.Table, rows: Collection[Row]) -> None:
    """Insert *rows*, which all have the same columns. Replace rows that exist. Of equal keys the last row wins."""
    if rows:
        plan = _insertion(table, connection.dialect.name, tuple(next(iter(rows))), replace=True)
        plan.run(connection, rows)


def update(connection: sa.Connection, table: sa.Table, keys: Columns, rows: Collection[Row]) -> None:
    """Update existing rows to the values of *rows*, which all have the same columns.

    *keys* are the columns that identify a row. A row that does not exist is skipped.
    """
    if rows:
        plan = _change(table, connection.dialect.name, keys, tuple(sorted(next(iter(rows)))))
        plan.run(connection, rows)


@dataclass(frozen=True, slots=True)
class _Values:
    """The columns that a statement takes, in order, and the converter of each."""

    names: Columns
    converts: tuple[Convert | None, ...]

    @classmethod
    def of(cls, table: sa.Table, names: Columns, dialect: sa.Dialect) -> _Values:
        """Return the columns *names* of *table* with their converters."""
        return cls(names, tuple(_convert(table.c[name].type, dialect) for name in names))

    def tuples(self, rows: Collection[Row]) -> list[tuple[Any, ...]]:
        """Return *rows* as tuples for the driver. Conversion by column is faster than by row."""
        columns = []
        for name, convert in zip(self.names, self.converts, strict=True):
            column = [row[name] for row in rows]
            if convert is not None:
                column = [None if value is None else convert(value) for value in column]
            columns.append(column)
        return list(zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class _ForSqlite:
    """A statement that takes one tuple per row."""

    text: str
    values: _Values

    def run(self, connection: sa.Connection, rows: Collection[Row]) -> None:
        """Write *rows*."""
        connection.exec_driver_sql(self.text, self.values.tuples(rows))


@dataclass(frozen=True, slots=True)
class _ForPostgresql:
    """A statement that takes all rows at once.

    If ``keys`` is not empty, only the last row of each key is sent: such a statement must not meet a key twice.
    """

    statement: sa.Insert | sa.Update
    values: _Values
    keys: Columns = ()

    def run(self, connection: sa.Connection, rows: Collection[Row]) -> None:
        """Write *rows*."""
        reported = [dict(zip(self.values.names, each, strict=True)) for each in self.values.tuples(rows)]
        if self.keys:
            reported = list({tuple([row[key] for key in self.keys]): row for row in reported}.values())
        for text in _texts(reported):
            connection.execute(self.statement, {_ROWS: text})


def _texts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield *rows* as JSON texts, split so that each text has at most ``_MOST_TEXT`` characters or one row."""
    text = json.dumps(rows, ensure_ascii=False)
    if len(text) <= _MOST_TEXT or len(rows) == 1:
        yield text
        return
    middle = len(rows) // 2
    yield from _texts(rows[:middle])
    yield from _texts(rows[middle:])


@lru_cache(maxsize=64)
def _insertion(table: sa.Table, dialect: str, columns: Columns, *, replace: bool) -> _ForSqlite | _ForPostgresql:
    keys = tuple(column.name for column in table.primary_key)
    if dialect == "sqlite":
        statement = _on_conflict(sqlite.insert(table), keys, columns, replace=replace)
        return _for_sqlite(statement.compile(dialect=_SQLITE, column_keys=columns), table)
    given = _recordset(table, columns)
    into = postgresql.insert(table).from_select(columns, sa.select(*(given[name] for name in columns)))
    statement = _on_conflict(into, keys, columns, replace=replace)
    return _ForPostgresql(statement, _Values.of(table, columns, _POSTGRESQL), keys if replace else ())


def _on_conflict(into: Any, keys: Columns, columns: Columns, *, replace: bool) -> Any:
    if not replace:
        return into.on_conflict_do_nothing()
    newer = {name: into.excluded[name] for name in columns if name not in keys}
    return into.on_conflict_do_update(index_elements=keys, set_=newer)


@lru_cache(maxsize=256)
def _change(table: sa.Table, dialect: str, keys: Columns, columns: Columns) -> _ForSqlite | _ForPostgresql:
    is_sqlite = dialect == "sqlite"
    given: Any = {name: sa.bindparam(name) for name in columns} if is_sqlite else _recordset(table, columns)
    there = (table.c[name] == given[name] for name in keys)
    statement = sa.update(table).where(*there).values({name: given[name] for name in columns if name not in keys})
    if is_sqlite:
        return _for_sqlite(statement.compile(dialect=_SQLITE), table)
    return _ForPostgresql(statement, _Values.of(table, columns, _POSTGRESQL), keys)


def _for_sqlite(compiled: Any, table: sa.Table) -> _ForSqlite:
    return _ForSqlite(str(compiled), _Values.of(table, tuple(compiled.positiontup), _SQLITE))


def _recordset(table: sa.Table, columns: Columns) -> Any:
    """Return the *columns* of the rows that PostgreSQL reads from a JSON text, with the types of *table*."""
    text = sa.cast(sa.bindparam(_ROWS, type_=sa.Text), postgresql.JSON)
    read = sa.func.json_populate_recordset(sa.literal_column(f"NULL::{table.name}"), text)
    return read.table_valued(*columns).alias("given").c


def _convert(kind: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> Convert | None:
    """Return the function that converts a value for the driver or for JSON, None if no conversion is needed."""
    if isinstance(kind, UtcDateTime):
        return _sqlite_moment if dialect is _SQLITE else _moment
    if isinstance(kind, SafeText):
        return safe
    return kind.dialect_impl(dialect).bind_processor(dialect)


@lru_cache(maxsize=4096)
def _moment(value: datetime) -> str:
    """Return *value* in the form that PostgreSQL reads. Cached: the time of an event is in several rows."""
    utc: Any = value if value.tzinfo is timezone.utc else _UTC.process_bind_param(value, _POSTGRESQL)
    return str(utc.isoformat(" ", "microseconds"))


def _sqlite_moment(value: datetime) -> str:
    """Return *value* as SQLAlchemy writes it into SQLite, which stores no zone.

    SQLAlchemy's own conversion takes six times as long.
    """
    return _moment(value)[:_WITHOUT_ZONE]
