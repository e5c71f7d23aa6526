"""Bulk writes give the same rows as SQLAlchemy's single writes, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import odd
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import exc

from gpuqueue.history import bulk
from gpuqueue.history.connect import open_engine, writing
from gpuqueue.history.tables import SafeText, UtcDateTime, jobs, run_devices, runs
from gpuqueue.model.run import StartKind

T0 = datetime(2026, 11, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)


def table(name: str) -> sa.Table:
    """Return a table with a column of each type in the history; some column names have a meaning in SQL."""
    return sa.Table(
        name,
        sa.MetaData(),
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("part", SafeText, primary_key=True),
        sa.Column("small", sa.SmallInteger),
        sa.Column("whole", sa.Integer),
        sa.Column("large", sa.BigInteger),
        sa.Column("level", sa.Double),
        sa.Column("at", UtcDateTime),
        sa.Column("text", SafeText),
        sa.Column("word", sa.Text),
        sa.Column("shared", sa.Boolean),
    )


PLAIN, MANY = table("plain"), table("many")
#: Texts that every column accepts: PostgreSQL takes no NUL, and UTF-8 has no surrogates.
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
moments = st.datetimes(
    datetime.fromisoformat("0001-01-03"),
    datetime.fromisoformat("9999-12-29"),
    timezones=st.sampled_from([timezone.utc, timezone(timedelta(hours=-9))]),
)
rows = st.fixed_dictionaries(
    {
        "small": st.none() | st.integers(-(2**15), 2**15 - 1),
        "whole": st.none() | st.integers(-(2**31), 2**31 - 1),
        "large": st.none() | st.integers(-(2**63), 2**63 - 1),
        "level": st.none()
        | st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
        | st.integers(0, 9),
        "at": st.none() | moments,
        "text": st.none() | odd.texts,
        "word": st.none() | words | st.sampled_from(['{"a": "\\u0000"}', "\\", StartKind.BACKFILL]),
        "shared": st.none() | st.booleans(),
    }
)
keys = st.tuples(st.integers(0, 3), st.sampled_from(["", "a", "\udcff", "\ufffd", "'\"%s:x?"]))
batches = st.lists(st.tuples(keys, rows), min_size=1, max_size=4).map(
    lambda pairs: [{"id": key[0], "part": key[1], **row} for key, row in pairs]
)


@pytest.fixture
def connection(empty_url: str) -> Iterator[sa.Connection]:
    """Return a connection to a database with both tables."""
    engine = open_engine(empty_url, make=True)
    with engine.begin() as connection:
        for each in (PLAIN, MANY):
            each.create(connection)
        yield connection
    engine.dispose()


def kept(connection: sa.Connection, of: sa.Table) -> list[Any]:
    """Return the stored values in table *of*, with their storage types."""
    seen = "quote({})" if connection.dialect.name == "sqlite" else "{}::text"
    columns = ", ".join(seen.format(f'"{column.name}"') for column in of.columns)
    return sorted(map(tuple, connection.exec_driver_sql(f"SELECT {columns} FROM {of.name}")))


def one_by_one(connection: sa.Connection, reported: list[dict[str, Any]]) -> None:
    """Write each row into the table PLAIN with SQLAlchemy, replacing an existing row."""
    for row in reported:
        connection.execute(sa.delete(PLAIN).where(PLAIN.c.id == row["id"], PLAIN.c.part == row["part"]))
        connection.execute(sa.insert(PLAIN).values(row))


def emptied(connection: sa.Connection) -> sa.Connection:
    """Empty both tables, because all examples share one connection."""
    for each in (PLAIN, MANY):
        connection.execute(sa.delete(each))
    return connection


@odd.few_examples
@given(first=batches, second=batches)
def test_rows_are_put_as_they_are_one_by_one(
    connection: sa.Connection, first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    """`bulk.put` stores the same values and types as single writes, for new, existing and repeated rows."""
    emptied(connection)
    for reported in (first, second):
        one_by_one(connection, reported)
        bulk.put(connection, MANY, reported)

    assert kept(connection, PLAIN) == kept(connection, MANY)


@odd.few_examples
@given(first=batches, second=batches)
def test_bulk_insert_inserts_new_rows_and_leaves_existing_rows_unchanged(
    connection: sa.Connection, first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    emptied(connection)
    one_by_one(connection, [*reversed(first)])
    for reported in (first, second):
        bulk.insert(connection, MANY, reported)

    before = {row[:2]: row for row in kept(connection, MANY)}
    assert kept(connection, PLAIN) == [before[row[:2]] for row in kept(connection, PLAIN)]


@odd.few_examples
@given(reported=batches, change=rows)
def test_rows_are_updated_as_they_are_one_by_one(
    connection: sa.Connection, reported: list[dict[str, Any]], change: dict[str, Any]
) -> None:
    """`bulk.update` changes the given columns of the rows with these keys and ignores missing rows."""
    emptied(connection)
    one_by_one(connection, reported)
    bulk.put(connection, MANY, reported)
    where = {"id": reported[0]["id"], "part": reported[0]["part"]}

    connection.execute(sa.update(PLAIN).where(*(PLAIN.c[name] == value for name, value in where.items())), change)
    bulk.update(connection, MANY, ("id", "part"), [{**where, **change}, {"id": 99, "part": "", **change}])

    assert kept(connection, PLAIN) == kept(connection, MANY)


def test_rows_that_are_more_than_one_text_go_in_several(
    connection: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PostgreSQL takes no text of 1 GiB, and five hundred environments can be that large.
    monkeypatch.setattr(bulk, "_MOST_TEXT", 100)
    reported = [{"id": number, "part": "", "text": "x" * (10 * number)} for number in range(20)]

    bulk.put(connection, MANY, [*reported, {**reported[3], "text": "newer"}])

    found = {row.id: row.text for row in connection.execute(sa.select(MANY.c.id, MANY.c.text))}
    assert {**{row["id"]: row["text"] for row in reported}, 3: "newer"} == found


@pytest.mark.parametrize("backend", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("of", "keys"),
    [(jobs, ("id",)), (runs, ("job_id", "attempt", "token")), (run_devices, ("job_id", "attempt", "device_uuid"))],
)
def test_rows_are_found_by_their_keys_also_in_small_tables(
    history_url: str, of: sa.Table, keys: tuple[str, ...]
) -> None:
    # PostgreSQL would read a small table completely and keep that plan when it has a million rows.
    columns = tuple(column.name for column in of.columns)
    engine = open_engine(history_url)
    with writing(engine) as connection:
        plan: Any = bulk._change(of, "postgresql", keys, columns)
        text = str(plan.statement.compile(dialect=connection.dialect))
        steps = connection.exec_driver_sql(f"EXPLAIN {text}", {"rows": "[]"}).scalars().all()
    engine.dispose()

    assert any(f" on {of.name}" in step and "Index" in step for step in steps), steps
    assert not any("Seq Scan" in step or "Hash" in step for step in steps), steps


def test_no_rows_need_no_statement(connection: sa.Connection) -> None:
    bulk.insert(connection, MANY, [])
    bulk.put(connection, MANY, [])
    bulk.update(connection, MANY, ("id", "part"), [])

    assert [] == kept(connection, MANY)


@pytest.mark.parametrize(
    "wrong", [{"large": 10**30}, {"at": T0.replace(tzinfo=None)}, {"shared": "maybe"}, {"word": "\udcff"}]
)
def test_what_no_column_takes_is_refused(connection: sa.Connection, wrong: dict[str, Any]) -> None:
    """An invalid value is refused and not converted: the recorder sets such an event aside."""
    row = {"id": 1, "part": "", "large": 1, "at": T0, "shared": True, "word": "", **wrong}
    with pytest.raises((exc.StatementError, OverflowError, ValueError, TypeError)), connection.begin_nested():
        bulk.put(connection, MANY, [row])
