"""Translates a history query into SQL that an index can answer, page by page, in any order.

A page is found by its key (keyset paging): the sort value and the id of the last job seen. The first page costs as much
as the thousandth, and new jobs do not shift any page.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gpuqueue.errors import JobNotFound
from gpuqueue.history import exit_codes, patterns, text_search
from gpuqueue.history.device_names import device_labels, devices
from gpuqueue.history.index_choice import Condition, among, are_few, unindexed
from gpuqueue.history.tables import job_tags, jobs, run_devices
from gpuqueue.model.history_query import Sort
from gpuqueue.model.run import EndingKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuqueue.model.history_query import HistoryQuery

#: The column of each sort order by a time or a number. None means unknown and sorts last.
_COLUMNS: dict[Sort, sa.Column[Any]] = {
    Sort.ENDED: jobs.c.ended_at,
    Sort.DURATION: jobs.c.duration_s,
    Sort.PEAK: jobs.c.peak_bytes,
}
#: The value of most jobs, which the partial index of the column leaves out. SQL must exclude this value, or the
#: database does not use the index.
_USUAL: dict[sa.Column[Any], Any] = {jobs.c.ending: EndingKind.EXITED.value, jobs.c.exit_code: 0}


def page(connection: sa.Connection, query: HistoryQuery) -> Sequence[sa.RowMapping]:
    """Return the rows of ``jobs`` that match, in the order of the query, at most ``limit`` of them.

    Raises:
        JobNotFound: ``after_id`` is not in the history database, and the order needs the row of that job.

    """
    conditions = _all_conditions(connection, query)
    rows: list[sa.RowMapping] = []
    for part in text_search.parts(connection, query, _parts(connection, query)):
        found = sa.select(jobs).where(*conditions, *part[0]).order_by(*part[1]).limit(query.limit - len(rows))
        rows.extend(connection.execute(found).mappings())
        if len(rows) >= query.limit:
            break
    return rows


def counts(connection: sa.Connection, query: HistoryQuery) -> tuple[dict[str, int], int]:
    """Return how many of the matching jobs are in each state, and the highest id of them (0: there are none)."""
    columns = jobs.c.state, sa.func.count(), sa.func.max(jobs.c.id)
    found = sa.select(*columns).where(*_all_conditions(connection, query)).group_by(jobs.c.state)
    rows = connection.execute(found).all()
    return {state: number for state, number, _ in rows}, max((last for _, _, last in rows), default=0)


def _all_conditions(connection: sa.Connection, query: HistoryQuery) -> list[Condition]:
    return [
        *_same(connection, query),
        *_conditions(connection, query),
        *_rare(connection, query),
        *_from_the_time_on(connection, query),
        *_on_devices(connection, query),
        *_tagged(connection, query),
        *exit_codes.returned(connection, query),
    ]


def _parts(connection: sa.Connection, query: HistoryQuery) -> Iterator[text_search.Part]:
    """Yield conditions and order of each part of the list: jobs with a known sort value first, then the rest."""
    by_id = jobs.c.id.asc() if query.reverse else jobs.c.id.desc()
    beyond = None if query.after_id is None else _beyond(jobs.c.id, query.after_id, query)
    if query.sort is Sort.ID:
        yield ([] if beyond is None else [beyond]), [by_id]
        return
    if query.sort is Sort.USER:
        yield from _by_user(connection, query, by_id)
        return
    column = _COLUMNS[query.sort]
    value = None if query.after_id is None else _place(connection, column, query.after_id)
    unknown: list[Condition] = [column.is_(None)]
    if query.after_id is None or value is not None:
        yield [column.is_not(None), *_from(column, value, query)], _order(column, query)
        yield unknown, [by_id]
    elif beyond is not None:
        yield [*unknown, beyond], [by_id]


def _by_user(
    connection: sa.Connection, query: HistoryQuery, by_id: sa.ColumnElement[int]
) -> Iterator[text_search.Part]:
    """Yield one part for each user: names ascend while ids descend, and no index has both directions."""
    column = jobs.c.user_name
    end = sa.func.max if query.reverse else sa.func.min
    name: str | None
    if query.after_id is None:
        name = connection.scalar(sa.select(end(column)))
    else:
        name = _place(connection, column, query.after_id)
        yield [column == name, _beyond(jobs.c.id, query.after_id, query)], [by_id]
        name = connection.scalar(sa.select(end(column)).where(column < name if query.reverse else column > name))
    while name is not None:
        yield [column == name], [by_id]
        name = connection.scalar(sa.select(end(column)).where(column < name if query.reverse else column > name))


def _order(column: sa.Column[Any], query: HistoryQuery) -> list[Any]:
    return [column.asc(), jobs.c.id.asc()] if query.reverse else [column.desc(), jobs.c.id.desc()]


def _from(column: sa.Column[Any], value: Any, query: HistoryQuery) -> list[Condition]:
    """Return the conditions for the jobs that come after the one with *value*."""
    if value is None or query.after_id is None:
        return []
    further = column > value if query.reverse else column < value
    at_least = column >= value if query.reverse else column <= value  # lets an index find the start
    return [at_least, sa.or_(further, _beyond(jobs.c.id, query.after_id, query))]


def _beyond(column: sa.Column[int], job_id: int, query: HistoryQuery) -> Condition:
    return column > job_id if query.reverse else column < job_id


def _place(connection: sa.Connection, column: sa.Column[Any], job_id: int) -> Any:
    found = connection.execute(sa.select(column).where(jobs.c.id == job_id)).first()
    if found is None:
        raise JobNotFound(f"there is no job {job_id} in the history to continue after: take the last id of a page")
    return found[0]


def _conditions(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield the conditions on the row of the job itself.

    In the order of ids, SQLite would collect all jobs of a time range by the index on times, and sort them. A unary
    plus disables that index, so SQLite walks along the ids. Where few jobs match, :func:`_rare` selects them.
    """
    along_ids = connection.dialect.name == "sqlite" and query.sort is Sort.ID
    for column, compare, bound in _bounds(query):
        if bound is not None:
            yield compare(unindexed(column) if along_ids and column is not jobs.c.id else column, bound)
    if query.name is not None and _is_pattern(query):
        yield patterns.matching(connection, jobs.c.name, query.name)
    if query.text is not None:
        yield text_search.has(query.text)


def _same(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield the conditions that a column has one of some values.

    In an order by a time or a number, SQLite would collect all jobs of a user by the index on users, and sort them.
    That is fast for few jobs. For many jobs, a unary plus disables that index, so SQLite walks along the order.
    """
    along_figures = connection.dialect.name == "sqlite" and query.sort in _COLUMNS
    for column, values in _alike(query):
        unusual = [column != _USUAL[column]] if column in _USUAL and _USUAL[column] not in values else []
        many = along_figures and not are_few(connection, sa.and_(among(column, values), *unusual))
        yield among(unindexed(column) if many else column, values)
        yield from unusual


def _alike(query: HistoryQuery) -> Iterator[tuple[sa.Column[Any], Sequence[Any]]]:
    """Yield each column that must have one of some values, with the values."""
    yield from (
        (column, [value])
        for column, value in (
            (jobs.c.user_name, query.user),
            (jobs.c.user_name, query.owner and query.owner.name),
            (jobs.c.user_uid, None if query.owner is None else query.owner.uid),
            (jobs.c.name, None if _is_pattern(query) else query.name),
            (jobs.c.host, query.host),
            (jobs.c.exit_code, None if exit_codes.means_more(query) else query.exit_code),
            (jobs.c.array_id, query.array_id),
        )
        if value is not None
    )
    for column, words in ((jobs.c.state, query.states), (jobs.c.ending, query.endings)):
        if words:
            yield column, [word.value for word in words]


def _bounds(query: HistoryQuery) -> Iterable[tuple[sa.Column[Any], Callable[[Any, Any], Condition], Any]]:
    return (
        (jobs.c.submitted_at, operator.ge, query.since),
        (jobs.c.submitted_at, operator.lt, query.until),
        (jobs.c.peak_bytes, operator.ge, query.min_peak_bytes),
        (jobs.c.duration_s, operator.ge, query.min_duration_s),
        (jobs.c.duration_s, operator.le, query.max_duration_s),
        (jobs.c.id, operator.lt, query.before_id),
    )


def _rare(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield a condition that selects the matching jobs, for each bound that few jobs match."""
    for column, compare, bound in _bounds(query):
        if bound is None or column is jobs.c.id:
            continue
        within = compare(column, bound)
        if are_few(connection, within):
            yield jobs.c.id.in_(sa.select(jobs.c.id).where(within).correlate(None))


def _from_the_time_on(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield the id at which the list reaches the requested time range, if many jobs come before that range.

    Ids ascend with time unless a clock was set back. So the id comes from the index on times, which is exact.
    """
    near, far = (query.since, query.until) if query.reverse else (query.until, query.since)
    if query.sort is not Sort.ID or near is None:
        return
    column = jobs.c.submitted_at
    before, period = (column < near, column >= near) if query.reverse else (column >= near, column < near)
    if are_few(connection, before) or are_few(connection, period):
        return
    if far is not None:
        period = period & (column < far if query.reverse else column >= far)
    # Without the unary plus a database would walk along the ids to the first match, which this condition avoids.
    end = (sa.func.min if query.reverse else sa.func.max)(unindexed(jobs.c.id))
    first = sa.select(end).where(period).correlate(None).scalar_subquery()
    yield jobs.c.id >= first if query.reverse else jobs.c.id <= first


def _tagged(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield a condition for each tag. Few tagged jobs are looked up. Many are found by walking along the order."""
    for word in query.tags:
        has_it = sa.select(job_tags.c.job_id).where(job_tags.c.tag == word)
        if are_few(connection, has_it):
            yield jobs.c.id.in_(has_it.correlate(None))
        else:
            yield sa.exists().where(job_tags.c.job_id == jobs.c.id, job_tags.c.tag == word)


def _is_pattern(query: HistoryQuery) -> bool:
    return query.name is not None and patterns.is_pattern(query.name)


def _on_devices(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield the condition that one of the job's runs was on a device that the query selects.

    The devices are looked up first: there are few, and an index finds an exact UUID. The ids of the jobs on these
    devices bound the search. Otherwise all jobs after the removal of a device would be searched for it.
    """
    if query.device is None and query.model is None:
        return
    start, part = query.device or "", (query.model or "").casefold()
    known = devices(connection)
    called = device_labels(connection, [each.uuid for each in known]) if ":" in start else {}
    meant = [
        each
        for each in known
        if (each.uuid.startswith(start) or called.get(each.uuid) == start)
        and (query.model is None or part in (each.name or "").casefold())
    ]
    if not meant:
        yield sa.false()
        return
    if query.sort is Sort.ID:  # in another order SQLite would search by these bounds and then sort all
        yield jobs.c.id.between(min(each.first_job for each in meant), max(each.last_job for each in meant))
    there = run_devices.c.device_uuid.in_([each.uuid for each in meant])
    yield sa.exists().where(run_devices.c.job_id == jobs.c.id, there)
