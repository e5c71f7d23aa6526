"""Chooses between an index and a walk along the order of a list, for conditions of history queries.

A page is found by walking along the order until the page is full. If few jobs match a condition, the walk would pass
nearly all jobs, and SQLite has no statistics to know that. So the matching jobs are counted first, with a few steps in
an index. Few jobs are selected by that index. With many jobs, a walk fills a page soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.operators import custom_op

from gpuqueue.history.tables import jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

Condition = sa.ColumnElement[bool]

#: Up to this many jobs are few: filtering and sorting them takes some hundredths of a second. If more jobs of a million
#: match, a walk along the order fills a page after some ten thousand steps.
FEW = 5_000


def are_few(connection: sa.Connection, ids: Condition | sa.Select[tuple[int]]) -> bool:
    """Return whether few jobs match the condition *ids*, or whether the query *ids* returns few rows."""
    wanted = ids if isinstance(ids, sa.Select) else sa.select(jobs.c.id).where(ids)
    some = wanted.limit(FEW + 1).subquery()
    return (connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0) <= FEW


def unindexed(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Return *column* with a unary plus, for which SQLite uses no index."""
    return UnaryExpression(column, operator=custom_op("+"), type_=column.type)


def among(column: sa.ColumnElement[Any], values: Sequence[Any]) -> Condition:
    """Return the condition that *column* has one of *values*."""
    return column == values[0] if len(values) == 1 else column.in_(values)
