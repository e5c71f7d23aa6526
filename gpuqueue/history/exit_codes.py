"""Finds jobs by the exit code that ``gpuqueue run`` and ``wait`` return for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.history.index_choice import Condition, are_few, unindexed
from gpuqueue.history.tables import jobs, runs
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuqueue.model.history_query import HistoryQuery

#: A shell's exit code for a process that a signal killed is this number plus the signal's number.
BY_SIGNAL = 128
#: Exit codes of ``run`` and ``wait`` for a job that reached its time limit, and for a cancelled job.
OUT_OF_TIME, CANCELLED = 124, 130


def means_more(query: HistoryQuery) -> bool:
    """Return whether ``run`` and ``wait`` also return this exit code for endings without a code, or with another."""
    return query.exit_code is not None and (query.exit_code > BY_SIGNAL or query.exit_code == OUT_OF_TIME)


def returned(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield the condition that the last run ended with the code, or in a way that ``run`` and ``wait`` report by it.

    Such endings are rare, so the partial indexes find them. Each way is a pair of conditions: an index answers the
    first, and the second is checked on each row found.
    """
    if query.exit_code is None or not means_more(query):
        return
    by_code = sa.and_(jobs.c.exit_code == query.exit_code, jobs.c.exit_code != 0)
    ways = [(by_code, sa.true()), *_without_the_code(query.exit_code)]
    if all(are_few(connection, known) for known, _ in ways):
        yield jobs.c.id.in_(sa.union_all(*(sa.select(jobs.c.id).where(*way) for way in ways)))
    else:  # without an index for one of the ways, SQLite walks along the order instead of sorting all matches
        walks = connection.dialect.name == "sqlite"
        code = unindexed(jobs.c.exit_code) if walks else jobs.c.exit_code
        yield sa.or_(code == query.exit_code, *(sa.and_(*way) for way in ways[1:]))


def _without_the_code(code: int) -> Iterator[tuple[Condition, Condition]]:
    """Yield the ways to end with *code* as :attr:`gpuqueue.model.run.Ending.shell_code` but not as ``exit_code``."""
    if code == OUT_OF_TIME:
        yield _ended_so(EndingKind.TIMED_OUT), sa.true()
        return
    if code == CANCELLED:
        yield _ended_so(EndingKind.CANCELLED), sa.true()
        yield jobs.c.state == JobState.CANCELLED.value, jobs.c.ending.is_(None)  # cancelled while waiting
    last = sa.select(sa.func.max(runs.c.attempt)).where(runs.c.job_id == jobs.c.id, runs.c.ending.is_not(None))
    by_it = sa.exists().where(
        runs.c.job_id == jobs.c.id,
        runs.c.attempt == last.correlate(jobs).scalar_subquery(),
        runs.c.signal == code - BY_SIGNAL,
    )
    yield _ended_so(EndingKind.SIGNALLED), by_it


def _ended_so(kind: EndingKind) -> Condition:
    return sa.and_(jobs.c.ending == kind.value, jobs.c.ending != EndingKind.EXITED.value)
