"""Turns a question to the history into SQL that an index can answer, page by page, in any order.

Each page is found by its key (keyset paging): the order's value and the id of the last job seen. It costs the same
for the first page and for the thousandth, and jobs that come in meanwhile shift nothing.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gpuqueue.book.tables import jobs, run_devices
from gpuqueue.errors import JobNotFound
from gpuqueue.history import Sort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuqueue.history import HistoryQuery

Condition = sa.ColumnElement[bool]

#: The column of each order but the ids'; None in it is not known, and stands last.
_COLUMNS: dict[Sort, sa.Column[Any]] = {
    Sort.ENDED: jobs.c.ended_at,
    Sort.DURATION: jobs.c.duration_s,
    Sort.PEAK: jobs.c.peak_bytes,
    Sort.USER: jobs.c.user_name,
}


def page(connection: sa.Connection, query: HistoryQuery) -> Sequence[sa.RowMapping]:
    """Return the rows of ``jobs`` that match, in the order that was asked for, at most ``limit`` of them.

    Raises:
        JobNotFound: ``after_id`` is no job of this book, and the order needs to know where it stands.

    """
    conditions = [*_conditions(query), *_on_devices(connection, query)]
    rows: list[sa.RowMapping] = []
    for part in _parts(connection, query):
        left = query.limit - len(rows)
        if left > 0:
            found = sa.select(jobs).where(*conditions, *part[0]).order_by(*part[1]).limit(left)
            rows.extend(connection.execute(found).mappings())
    return rows


def _parts(connection: sa.Connection, query: HistoryQuery) -> Iterator[tuple[list[Condition], list[Any]]]:
    """Yield conditions and order of each part of the list: first what the order knows a value of, then the rest."""
    by_id = jobs.c.id.asc() if query.reverse else jobs.c.id.desc()
    beyond = None if query.after_id is None else _beyond(jobs.c.id, query.after_id, query)
    if query.sort is Sort.ID:
        yield ([] if beyond is None else [beyond]), [by_id]
        return
    column = _COLUMNS[query.sort]
    value = None if query.after_id is None else _place(connection, column, query.after_id)
    unknown: list[Condition] = [column.is_(None)]
    if query.after_id is None or value is not None:
        yield [column.is_not(None), *_from(column, value, query)], _order(column, query)
        yield unknown, [by_id]
    elif beyond is not None:
        yield [*unknown, beyond], [by_id]


def _order(column: sa.Column[Any], query: HistoryQuery) -> list[Any]:
    if query.sort is Sort.USER:  # both ways the newest first within a name, unless all is reversed
        return [column.desc(), jobs.c.id.asc()] if query.reverse else [column.asc(), jobs.c.id.desc()]
    return [column.asc(), jobs.c.id.asc()] if query.reverse else [column.desc(), jobs.c.id.desc()]


def _from(column: sa.Column[Any], value: Any, query: HistoryQuery) -> list[Condition]:
    """Return what is true of the jobs behind the one that has *value*."""
    if value is None or query.after_id is None:
        return []
    upwards = query.reverse is not (query.sort is Sort.USER)
    further = column > value if upwards else column < value
    at_least = column >= value if upwards else column <= value  # what an index can start from
    return [at_least, sa.or_(further, _beyond(jobs.c.id, query.after_id, query))]


def _beyond(column: sa.Column[int], job_id: int, query: HistoryQuery) -> Condition:
    return column > job_id if query.reverse else column < job_id


def _place(connection: sa.Connection, column: sa.Column[Any], job_id: int) -> Any:
    found = connection.execute(sa.select(column).where(jobs.c.id == job_id)).first()
    if found is None:
        raise JobNotFound(f"there is no job {job_id} in the history to go on after")
    return found[0]


def _conditions(query: HistoryQuery) -> Iterator[Condition]:
    """Yield what the row of a job itself must be like."""
    for column, value in _equal(query):
        if value is not None:
            yield column == value
    for column, compare, bound in _bounds(query):
        if bound is not None:
            yield compare(column, bound)
    for column, words in ((jobs.c.state, query.states), (jobs.c.ending, query.endings)):
        if words:
            yield column.in_([word.value for word in words])
    if query.exit_code:
        yield jobs.c.exit_code != 0  # so that the index of the codes that are not 0 is seen to suffice
    if query.text is not None:
        yield jobs.c.command.icontains(query.text, autoescape=True)


def _equal(query: HistoryQuery) -> Iterable[tuple[sa.Column[Any], Any]]:
    return (
        (jobs.c.user_name, query.user),
        (jobs.c.name, query.name),
        (jobs.c.host, query.host),
        (jobs.c.exit_code, query.exit_code),
    )


def _bounds(query: HistoryQuery) -> Iterable[tuple[sa.Column[Any], Callable[[Any, Any], Condition], Any]]:
    return (
        (jobs.c.submitted_at, operator.ge, query.since),
        (jobs.c.submitted_at, operator.lt, query.until),
        (jobs.c.peak_bytes, operator.ge, query.min_peak_bytes),
        (jobs.c.duration_s, operator.ge, query.min_duration_s),
        (jobs.c.duration_s, operator.le, query.max_duration_s),
        (jobs.c.id, operator.lt, query.before_id),
    )


def _on_devices(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield that one of the job's runs was on a device that is meant.

    The devices are looked up first: there are few, and an exact UUID is what an index is good for. The jobs that they
    had bound the search, so that a card that left last year is not looked for in all that came after it.
    """
    if query.device is None and query.model is None:
        return
    start, part = query.device or "", (query.model or "").casefold()
    meant = [
        each
        for each in devices(connection)
        if each.uuid.startswith(start) and (query.model is None or part in (each.name or "").casefold())
    ]
    if not meant:
        yield sa.false()
        return
    yield jobs.c.id.between(min(each.first_job for each in meant), max(each.last_job for each in meant))
    there = run_devices.c.device_uuid.in_([each.uuid for each in meant])
    yield sa.exists().where(run_devices.c.job_id == jobs.c.id, there)


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownDevice:
    """A device that the book knows: what the newest run that was told calls it, and the jobs that it had."""

    uuid: str
    name: str | None
    first_job: int
    last_job: int


def devices(connection: sa.Connection) -> list[KnownDevice]:
    """Return every device that the book knows, each found with a few steps in the index and not by reading it all."""
    column = run_devices.c.device_uuid
    smallest = sa.select(sa.func.min(column).label("uuid"))
    each = smallest.cte("each_device", recursive=True)
    following = smallest.where(column > each.c.uuid).scalar_subquery()
    each = each.union_all(sa.select(following).where(each.c.uuid.is_not(None)))
    newest_name = (
        sa.select(run_devices.c.name)
        .where(column == each.c.uuid, run_devices.c.name.is_not(None))
        .order_by(run_devices.c.job_id.desc())
        .limit(1)
    )
    first, last = (
        sa.select(end(run_devices.c.job_id)).where(column == each.c.uuid) for end in (sa.func.min, sa.func.max)
    )
    found = sa.select(
        each.c.uuid,
        newest_name.scalar_subquery().label("name"),
        first.scalar_subquery().label("first_job"),
        last.scalar_subquery().label("last_job"),
    ).where(each.c.uuid.is_not(None))
    return [KnownDevice(**row) for row in connection.execute(found).mappings()]
