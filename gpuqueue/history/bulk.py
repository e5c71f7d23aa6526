"""Writes many rows of one table, each database in the way in which it takes the most of them a second.

SQLAlchemy's ``executemany`` looks each value of each row up by its name, and sends PostgreSQL a message for each row:
that took longer than the database did. So SQLite is handed tuples, with a statement that was compiled once, and
PostgreSQL gets all rows as one text in JSON. What is written is the same as with a plain INSERT or UPDATE.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gpuqueue.history.tables import SafeText, UtcDateTime
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from gpuqueue.history.columns import Row

    Convert = Callable[[Any], Any]
    Columns = tuple[str, ...]

#: Ours, to compile and convert for; the connections' own do neither differently.
_SQLITE, _POSTGRESQL = sqlite.dialect(), postgresql.dialect()  # type: ignore[no-untyped-call] # they have no types
#: The parameter that brings PostgreSQL all rows.
_ROWS = "rows"
#: Most characters of it. PostgreSQL takes no text of 1 GiB, and takes several times as much memory to read one.
_MOST_TEXT = 16 * MIB
_UTC, _WITHOUT_ZONE = UtcDateTime(), len("2026-11-01 00:00:00.000000")


def insert(connection: sa.Connection, table: sa.Table, rows: Collection[Row]) -> None:
    """Insert *rows*, which all have the same columns; one that is there already is left alone."""
    if rows:
        plan = _insertion(table, connection.dialect.name, tuple(next(iter(rows))), replace=False)
        plan.run(connection, rows)


def put(connection: sa.Connection, table: sa.Table, rows: Collection[Row]) -> None:
    """Insert *rows*, which all have the same columns; one that is there already is replaced, and the last one stays."""
    if rows:
        plan = _insertion(table, connection.dialect.name, tuple(next(iter(rows))), replace=True)
        plan.run(connection, rows)


def update(connection: sa.Connection, table: sa.Table, keys: Columns, rows: Collection[Row]) -> None:
    """Set what *rows*, which all have the same columns, say beside their *keys*; one that is not there is left out."""
    if rows:
        plan = _change(table, connection.dialect.name, keys, tuple(sorted(next(iter(rows)))))
        plan.run(connection, rows)


@dataclass(frozen=True, slots=True)
class _Values:
    """Which columns a statement wants values of, in this order, and how each is converted."""

    names: Columns
    converts: tuple[Convert | None, ...]

    @classmethod
    def of(cls, table: sa.Table, names: Columns, dialect: sa.Dialect) -> _Values:
        """Return those of the columns *names* of *table*."""
        return cls(names, tuple(_convert(table.c[name].type, dialect) for name in names))

    def tuples(self, rows: Collection[Row]) -> list[tuple[Any, ...]]:
        """Return *rows* as what the driver is to be given. It goes by column because that is faster than by row."""
        columns = []
        for name, convert in zip(self.names, self.converts, strict=True):
            column = [row[name] for row in rows]
            if convert is not None:
                column = [None if value is None else convert(value) for value in column]
            columns.append(column)
        return list(zip(*columns, strict=True))


@dataclass(frozen=True, slots=True)
class _ForSqlite:
    """A statement that takes a row as a tuple."""

    text: str
    values: _Values

    def run(self, connection: sa.Connection, rows: Collection[Row]) -> None:
        """Write *rows*."""
        connection.exec_driver_sql(self.text, self.values.tuples(rows))


@dataclass(frozen=True, slots=True)
class _ForPostgresql:
    """A statement that takes all rows at once. Where it must meet none twice, only the last with its *keys* goes."""

    statement: sa.Insert | sa.Update
    values: _Values
    keys: Columns = ()

    def run(self, connection: sa.Connection, rows: Collection[Row]) -> None:
        """Write *rows*."""
        told = [dict(zip(self.values.names, each, strict=True)) for each in self.values.tuples(rows)]
        if self.keys:
            told = list({tuple([row[key] for key in self.keys]): row for row in told}.values())
        for text in _texts(told):
            connection.execute(self.statement, {_ROWS: text})


def _texts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield *rows* in JSON, in as many texts as it takes."""
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
    """Return the *columns* of the rows that PostgreSQL reads from a text in JSON, of the types that *table* has."""
    text = sa.cast(sa.bindparam(_ROWS, type_=sa.Text), postgresql.JSON)
    read = sa.func.json_populate_recordset(sa.literal_column(f"NULL::{table.name}"), text)
    return read.table_valued(*columns).alias("given").c


def _convert(kind: sa.types.TypeEngine[Any], dialect: sa.Dialect) -> Convert | None:
    """Return what makes of a value what the driver, or JSON, is to be given; None where it is that already."""
    if isinstance(kind, UtcDateTime):
        return _sqlite_moment if dialect is _SQLITE else _moment
    if isinstance(kind, SafeText):
        return partial(kind.process_bind_param, dialect=dialect)
    return kind.dialect_impl(dialect).bind_processor(dialect)


def _moment(value: datetime) -> str:
    """Return *value* as PostgreSQL reads it."""
    utc: Any = value if value.tzinfo is timezone.utc else _UTC.process_bind_param(value, _POSTGRESQL)
    return str(utc.isoformat(" ", "microseconds"))


def _sqlite_moment(value: datetime) -> str:
    """Return *value* as SQLAlchemy writes it into SQLite, which keeps no zone; that takes it six times as long."""
    return _moment(value)[:_WITHOUT_ZONE]
