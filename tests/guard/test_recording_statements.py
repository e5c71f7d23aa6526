"""What the recorder asks the book's database for: each statement is a round trip where that is a PostgreSQL elsewhere.

test_recording_calls.py holds what a batch costs in Python; here is what it costs the database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from guard.one_life import OneLife
from own_store import OwnStore

from gpuqueue.history.database import Book
from gpuqueue.queue.jobqueue import JobQueue

#: Transactions of a turn of the recorder. It looks twice how far the book is, once to see whether it or the store lost
#: anything, once for the batch; and it writes the batch. Only that is committed, and so waits for the disk. None of it
#: varies, so there are no ranges. One more is paid by each batch, of which a row of jobs one by one has four each: if
#: it is worth that, move the count and say why.
BATCH = {"begin": 3, "rollback": 2, "commit": 1}
#: Of a turn without any event, and so of a second in which nothing happens.
IDLE = {"begin": 2, "rollback": 2}
#: Statements of both. SQLite is told of each transaction by one, PostgreSQL how to write safely by one. A batch is four
#: tables, the cursor and the tables' version, however many jobs are in it.
STATEMENTS = {"sqlite": (11, 4), "postgresql": (9, 2)}
#: Jobs of one batch.
FEW, MANY = 1, 40


@pytest.fixture
def life(own_store: OwnStore, book_url: str) -> Iterator[OneLife]:
    """Return a life whose book is one of each kind."""
    made = OneLife(store=own_store, queue=JobQueue(own_store.url), book=Book(book_url))
    yield made
    made.admin.close()
    made.queue.close()
    made.book.close()


@contextmanager
def counted() -> Iterator[tuple[Counter[str], list[str]]]:
    """Count the beginnings and ends of transactions, and note the statements, of all that SQLAlchemy is asked for."""
    ends, statements = Counter[str](), list[str]()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    listeners = {name: lambda _connection, name=name: ends.update([name]) for name in ("begin", "rollback", "commit")}
    listeners["before_cursor_execute"] = note
    for name, listener in listeners.items():
        sa.event.listen(sa.Engine, name, listener)
    try:
        yield ends, statements
    finally:
        for name, listener in listeners.items():
            sa.event.remove(sa.Engine, name, listener)


@pytest.mark.parametrize("jobs", [0, FEW, MANY])
def test_a_turn_asks_the_database_for_no_more_than_agreed(life: OneLife, backend: str, jobs: int) -> None:
    """As its loop turns: first it looks whether anything was lost."""
    for _ in range(jobs):
        for name, act in life.steps().items():
            if name != "record":
                act()

    with counted() as (ends, statements):
        life.recorder.mend()
        assert 4 * jobs == life.recorder.record(0)

    assert (BATCH if jobs else IDLE) == ends
    batch, idle = STATEMENTS[backend]
    assert (batch if jobs else idle) == len(statements), "\n".join(statements)
