"""Lists jobs with the members of each array folded into one row.

The ids of an array and its members are one block. So the list is read along the ids, and from the first row of an array
it goes on behind the block: the cost depends on the number of rows shown, not on the size of the arrays.

In the order of ends, the members of an array are apart. So only arrays and single jobs are listed there, and an array
is where it has ended as a whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.history import filters, queries
from gpuqueue.model.history_query import FoldedRow
from gpuqueue.model.job import JobState

if TYPE_CHECKING:
    import sqlalchemy as sa

    from gpuqueue.model.history_query import HistoryQuery
    from gpuqueue.model.run import Record


def folded(connection: sa.Connection, query: HistoryQuery) -> list[FoldedRow]:
    """Return at most ``limit`` rows of the jobs that match *query*, in the order of their ids or of their ends.

    An array is one row, with the number of its matching members in each state.
    """
    if not query.is_by_id:
        return [_row(connection, query, each) for each in queries.history(connection, query, with_members=False)]
    rows: list[FoldedRow] = []
    page = query
    while len(rows) < query.limit:
        records = queries.history(connection, page)
        for record in records:
            array_id = _array_of(record)
            if rows and array_id is not None and array_id == _array_of(rows[-1].record):
                continue
            rows.append(_row(connection, query, record))
            if len(rows) == query.limit:
                return rows
        if len(records) < page.limit:
            return rows
        page = replace(page, after_id=rows[-1].last_id)
    return rows


def _array_of(record: Record) -> int | None:
    """Return the id of the array that *record* is, or belongs to, or None."""
    if record.job.member is not None:
        return record.job.member.array_id
    return record.job.id if record.job.spec.array is not None else None


def _row(connection: sa.Connection, query: HistoryQuery, record: Record) -> FoldedRow:
    array_id = _array_of(record)
    if array_id is None:
        return FoldedRow(record=record, last_id=record.job.id)
    members, highest = filters.counts(connection, replace(query, array_id=array_id, after_id=None))
    return FoldedRow(
        record=record if record.job.id == array_id else queries.get(connection, array_id) or record,
        members={state: members[state.value] for state in JobState if state.value in members},
        last_id=max(array_id, highest) if query.reverse and query.is_by_id else array_id,
    )
