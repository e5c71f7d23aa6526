"""Finds jobs by a text in their command or note: a common text by walking along the list, a rare one by an index.

A walk fills a page with a common text after a few steps, but would pass a million jobs for a rare text. The text index
(:mod:`gpuqueue.history.text_index`) finds a rare text at once, but would return half a million jobs for a common one.
Which case applies is unknown beforehand. So the search walks through the next jobs of the list first, and only then
uses the index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gpuqueue.history import index_choice, text_index
from gpuqueue.history.column_types import safe
from gpuqueue.history.index_choice import Condition
from gpuqueue.history.tables import jobs
from gpuqueue.model.history_query import Sort

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuqueue.model.history_query import HistoryQuery

#: Conditions and order of one part of the list. The parts in sequence are the whole list.
Part = tuple[list[Condition], list[Any]]

#: Number of jobs that are searched before the index is used. That takes about as long as using the index.
NEAR = 1000
#: Length of the shortest text that the index can find, in characters: that of a trigram.
SHORTEST = 3
#: Most trigrams in a query. More trigrams hardly narrow the result.
_MOST = 24

_index = sa.table(text_index.TABLE, sa.column("rowid", sa.BigInteger), sa.column(text_index.TABLE))


def has(text: str) -> Condition:
    """Return the condition that the command or the note contains *text*, ignoring the case of ASCII letters."""
    return sa.or_(*(each.icontains(text, autoescape=True) for each in (jobs.c.command, jobs.c.note)))


def parts(connection: sa.Connection, query: HistoryQuery, plain: Iterator[Part]) -> Iterator[Part]:
    """Yield the parts of the list that must be searched for the text; *plain* are the parts of the whole list.

    If the index returns more than ``index_choice.FEW`` jobs, the text is common enough to be found by walking.
    """
    if query.text is None or len(query.text) < SHORTEST or not text_index.is_there(connection):
        yield from plain
    elif query.sort is Sort.ID:
        for part in plain:
            yield from _along_ids(connection, query, part)
    elif connection.dialect.name == "sqlite":
        ids = _named(connection, query, None, index_choice.FEW + 1)
        narrow = [jobs.c.id.in_(ids)] if len(ids) <= index_choice.FEW else []
        yield from (([*conditions, *narrow], order) for conditions, order in plain if ids)
    else:  # PostgreSQL's planner estimates how common the text is
        yield from plain


def _along_ids(connection: sa.Connection, query: HistoryQuery, part: Part) -> Iterator[Part]:
    """Yield the next jobs of *part*, then the jobs that the index returns, then the rest if these are too many.

    SQLite's index returns jobs in the order of the list, so a text that was common only long ago is found as well.
    """
    conditions, order = part
    edge = connection.scalar(sa.select(jobs.c.id).where(*conditions).order_by(*order).offset(NEAR).limit(1))
    if edge is None:
        yield part
        return
    yield [*conditions, jobs.c.id <= edge if query.reverse else jobs.c.id >= edge], order
    ids = _named(connection, query, edge, index_choice.FEW + 1)
    in_order = connection.dialect.name == "sqlite"
    if ids and (in_order or len(ids) <= index_choice.FEW):
        yield [jobs.c.id.in_(ids)], order
    if len(ids) > index_choice.FEW:
        yield [_beyond(jobs.c.id, ids[-1] if in_order else edge, query)], order


def _beyond(column: sa.ColumnElement[int], edge: int, query: HistoryQuery) -> Condition:
    return column > edge if query.reverse else column < edge


def _named(connection: sa.Connection, query: HistoryQuery, edge: int | None, most: int) -> Sequence[int]:
    """Return up to *most* jobs that may contain the text. If *edge* is given, return only jobs beyond it."""
    text = str(query.text)
    column: sa.ColumnElement[int] = jobs.c.id
    may_have = has(text)
    if connection.dialect.name == "sqlite":
        column, may_have = _index.c.rowid, _index.c[text_index.TABLE].op("MATCH", is_comparison=True)(_trigrams(text))
    beyond = [] if edge is None else [_beyond(column, edge, query)]
    found = sa.select(column).where(may_have, *beyond).limit(most)
    if connection.dialect.name == "sqlite":
        found = found.order_by(column.asc() if query.reverse else column.desc())
    return connection.scalars(found).all()


def _trigrams(text: str) -> str:
    """Return an FTS5 query for *text*: all its trigrams, or an even selection of them if there are many."""
    # Like SQLite's lower(): only ASCII letters change.
    lower = safe(text).encode().lower().decode()
    each = list(dict.fromkeys(lower[start : start + SHORTEST] for start in range(len(lower) - SHORTEST + 1)))
    quoted = ('"' + trigram.replace('"', '""') + '"' for trigram in each[:: -(-len(each) // _MOST)])
    return " AND ".join(quoted)
