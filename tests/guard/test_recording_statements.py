"""Tests that bound the recorder's database statements. Each is a round trip to a PostgreSQL on another host.

test_recording_calls.py bounds what a batch costs in Python. This module bounds what it costs the database.
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

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.queue.jobqueue import JobQueue

#: Transactions of one turn of the recorder with a batch. The recorder reads the history's position twice, once to see
#: whether the history or the store lost data, and once for the batch; then it writes the batch. Only the batch is
#: committed, and so waits for the disk. The numbers do not vary, so there are no ranges. Each batch pays for one more
#: transaction, and jobs that run one by one take four batches each. If it is worth that, change the count and say why.
BATCH = {"begin": 3, "rollback": 2, "commit": 1}
#: Transactions of a turn without events, such as in a second in which nothing happens.
IDLE = {"begin": 2, "rollback": 2}
#: Statements of a turn with a batch and of one without, by database. SQLite gets one statement to begin each
#: transaction, PostgreSQL one to set its durability. A batch writes five tables, the cursor and the tables' version,
#: for any number of jobs.
STATEMENTS = {"sqlite": (12, 4), "postgresql": (10, 2)}
#: Jobs of one batch.
FEW, MANY = 1, 40


@pytest.fixture
def life(own_store: OwnStore, history_url: str) -> Iterator[OneLife]:
    """Return a life of jobs whose history is in SQLite, and then one whose history is in PostgreSQL."""
    made = OneLife(store=own_store, queue=JobQueue(own_store.url), database=HistoryDatabase(history_url))
    yield made
    made.admin.close()
    made.queue.close()
    made.database.close()


@contextmanager
def counted() -> Iterator[tuple[Counter[str], list[str]]]:
    """Count the transactions that SQLAlchemy begins and ends, and collect its statements."""
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
    """A turn of the recorder, with its check for lost data, takes no more statements than agreed."""
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
