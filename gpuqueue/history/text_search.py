"""Finds the jobs with a text in their command or note: a common one by walking along the list, a rare one by an index.

A walk has a page of common jobs after a few steps, and would pass a million jobs for a rare one; an index of texts
(:mod:`gpuqueue.history.text_index`) has a rare one at once, and would name half a million of a common one. Nobody knows
beforehand which it is. So the next jobs of the list are looked through, and only then is the index asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gpuqueue.history import text_index
from gpuqueue.history.tables import jobs, safe
from gpuqueue.model.history_query import Sort

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuqueue.model.history_query import HistoryQuery

Condition = sa.ColumnElement[bool]
#: Conditions and order of a part of the list; the parts after one another are the list.
Part = tuple[list[Condition], list[Any]]

#: So many jobs of the list are looked through before the index is asked: that takes about as long as asking it.
NEAR = 1000
#: The index knows a text by what it has of this many characters.
SHORTEST = 3
#: Most trigrams that are asked for. More find hardly less.
_MOST = 24

_index = sa.table(text_index.TABLE, sa.column("rowid", sa.BigInteger), sa.column(text_index.TABLE))


def has(text: str) -> Condition:
    """Return that *text* is a part of the command or of the note, in any case of its ASCII letters."""
    return sa.or_(*(each.icontains(text, autoescape=True) for each in (jobs.c.command, jobs.c.note)))


def parts(connection: sa.Connection, query: HistoryQuery, plain: Iterator[Part], few: int) -> Iterator[Part]:
    """Yield the parts of the list that are to be looked through for the text; *plain* are those of the whole list.

    What the index names more than *few* jobs for is common enough to be found by walking.
    """
    if query.text is None or len(query.text) < SHORTEST or not text_index.is_there(connection):
        yield from plain
    elif query.sort is Sort.ID:
        for part in plain:
            yield from _along_ids(connection, query, part, few)
    elif connection.dialect.name == "sqlite":
        ids = _named(connection, query, None, few + 1)
        narrow = [jobs.c.id.in_(ids)] if len(ids) <= few else []
        yield from (([*conditions, *narrow], order) for conditions, order in plain if ids)
    else:  # PostgreSQL has an idea of how common the text is
        yield from plain


def _along_ids(connection: sa.Connection, query: HistoryQuery, part: Part, few: int) -> Iterator[Part]:
    """Yield the next jobs of *part*; of the rest those that the index names; and all the rest where it names too many.

    SQLite's index names them in the order of the list, so that a text that was common only long ago is found as well.
    """
    conditions, order = part
    edge = connection.scalar(sa.select(jobs.c.id).where(*conditions).order_by(*order).offset(NEAR).limit(1))
    if edge is None:
        yield part
        return
    yield [*conditions, jobs.c.id <= edge if query.reverse else jobs.c.id >= edge], order
    ids = _named(connection, query, edge, few + 1)
    in_order = connection.dialect.name == "sqlite"
    if ids and (in_order or len(ids) <= few):
        yield [jobs.c.id.in_(ids)], order
    if len(ids) > few:
        yield [_beyond(jobs.c.id, ids[-1] if in_order else edge, query)], order


def _beyond(column: sa.ColumnElement[int], edge: int, query: HistoryQuery) -> Condition:
    return column > edge if query.reverse else column < edge


def _named(connection: sa.Connection, query: HistoryQuery, edge: int | None, most: int) -> Sequence[int]:
    """Return up to *most* jobs that may have the text, of those beyond *edge* if there is one."""
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
    """Return *text* as a question to FTS5: any job with all of its trigrams, or of many some from all over it."""
    # As SQLite's lower(): a capital beyond ASCII is another letter.
    lower = safe(text).encode().lower().decode()
    each = list(dict.fromkeys(lower[start : start + SHORTEST] for start in range(len(lower) - SHORTEST + 1)))
    quoted = ('"' + trigram.replace('"', '""') + '"' for trigram in each[:: -(-len(each) // _MOST)])
    return " AND ".join(quoted)
