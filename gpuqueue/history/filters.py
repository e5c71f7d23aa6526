"""Translates a history query into SQL that an index can answer, page by page, in any order.

A page is found by its key (keyset paging): the sort value and the id of the last job seen. The first page costs as much
as the thousandth, and new jobs do not shift any page.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.operators import custom_op

from gpuqueue.errors import JobNotFound
from gpuqueue.history import patterns, text_search
from gpuqueue.history.device_names import device_labels
from gpuqueue.history.tables import job_tags, jobs, run_devices, runs
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.history_query import Sort
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gpuqueue.model.history_query import HistoryQuery

Condition = sa.ColumnElement[bool]

#: A shell's exit code for a process that a signal killed is this number plus the signal's number.
BY_SIGNAL = 128
#: Exit codes of ``run`` and ``wait`` for a job that reached its time limit, and for a cancelled job.
OUT_OF_TIME, CANCELLED = 124, 130

#: The column of each sort order by a time or a number. None means unknown and sorts last.
_COLUMNS: dict[Sort, sa.Column[Any]] = {
    Sort.ENDED: jobs.c.ended_at,
    Sort.DURATION: jobs.c.duration_s,
    Sort.PEAK: jobs.c.peak_bytes,
}
#: The value of most jobs, which the partial index of the column leaves out. SQL must exclude this value, or the
#: database does not use the index.
_USUAL: dict[sa.Column[Any], Any] = {jobs.c.ending: EndingKind.EXITED.value, jobs.c.exit_code: 0}
#: Up to this many jobs are few: filtering and sorting them takes some hundredths of a second. If more jobs of a million
#: match, a walk along the order fills a page after some ten thousand steps.
FEW = 5_000


def page(connection: sa.Connection, query: HistoryQuery) -> Sequence[sa.RowMapping]:
    """Return the rows of ``jobs`` that match, in the order of the query, at most ``limit`` of them.

    Raises:
        JobNotFound: ``after_id`` is not in the history database, and the order needs the row of that job.

    """
    conditions = [
        *_same(connection, query),
        *_conditions(connection, query),
        *_rare(connection, query),
        *_from_the_time_on(connection, query),
        *_on_devices(connection, query),
        *_tagged(connection, query),
        *_returned(connection, query),
    ]
    rows: list[sa.RowMapping] = []
    for part in text_search.parts(connection, query, _parts(connection, query), FEW):
        found = sa.select(jobs).where(*conditions, *part[0]).order_by(*part[1]).limit(query.limit - len(rows))
        rows.extend(connection.execute(found).mappings())
        if len(rows) >= query.limit:
            break
    return rows


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
        raise JobNotFound(f"there is no job {job_id} in the history to go on after: take the last id of a page")
    return found[0]


def _conditions(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield the conditions on the row of the job itself.

    In the order of ids, SQLite would collect all jobs of a time range by the index on times, and sort them. A unary
    plus disables that index, so SQLite walks along the ids. Where few jobs match, :func:`_rare` selects them.
    """
    along_ids = connection.dialect.name == "sqlite" and query.sort is Sort.ID
    for column, compare, bound in _bounds(query):
        if bound is not None:
            yield compare(_unindexed(column) if along_ids and column is not jobs.c.id else column, bound)
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
        many = along_figures and not _are_few(connection, sa.and_(_among(column, values), *unusual))
        yield _among(_unindexed(column) if many else column, values)
        yield from unusual


def _unindexed(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    return UnaryExpression(column, operator=custom_op("+"), type_=column.type)


def _are_few(connection: sa.Connection, condition: Condition) -> bool:
    some = sa.select(jobs.c.id).where(condition).limit(FEW + 1).subquery()
    return (connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0) <= FEW


def _among(column: sa.ColumnElement[Any], values: Sequence[Any]) -> Condition:
    return column == values[0] if len(values) == 1 else column.in_(values)


def _alike(query: HistoryQuery) -> Iterator[tuple[sa.Column[Any], Sequence[Any]]]:
    """Yield each column that must have one of some values, with the values."""
    yield from (
        (column, [value])
        for column, value in (
            (jobs.c.user_name, query.user),
            (jobs.c.name, None if _is_pattern(query) else query.name),
            (jobs.c.host, query.host),
            (jobs.c.exit_code, None if _means_more(query) else query.exit_code),
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
    """Yield a condition that selects the matching jobs, for each bound that few jobs match.

    A page is found by walking along the order until the page is full. If few jobs or none match a bound, the walk would
    pass nearly all jobs, and SQLite has no statistics to know that. So the matching jobs are counted first, with a few
    steps in the index of the bound. Few jobs are selected by that index. With many jobs, a walk fills a page soon.
    """
    for column, compare, bound in _bounds(query):
        if bound is None or column is jobs.c.id:
            continue
        within = compare(column, bound)
        if _are_few(connection, within):
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
    if _are_few(connection, before) or _are_few(connection, period):
        return
    if far is not None:
        period = period & (column < far if query.reverse else column >= far)
    # Without the unary plus a database would walk along the ids to the first match, which this condition avoids.
    end = (sa.func.min if query.reverse else sa.func.max)(_unindexed(jobs.c.id))
    first = sa.select(end).where(period).correlate(None).scalar_subquery()
    yield jobs.c.id >= first if query.reverse else jobs.c.id <= first


def _tagged(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield a condition for each tag. Few tagged jobs are looked up. Many are found by walking along the order."""
    for word in query.tags:
        has_it = sa.select(job_tags.c.job_id).where(job_tags.c.tag == word)
        number = sa.select(sa.func.count()).select_from(has_it.limit(FEW + 1).subquery())
        if (connection.scalar(number) or 0) <= FEW:
            yield jobs.c.id.in_(has_it.correlate(None))
        else:
            yield sa.exists().where(job_tags.c.job_id == jobs.c.id, job_tags.c.tag == word)


def _is_pattern(query: HistoryQuery) -> bool:
    return query.name is not None and patterns.is_pattern(query.name)


def _means_more(query: HistoryQuery) -> bool:
    """Return whether ``run`` and ``wait`` also return this exit code for endings without a code, or with another."""
    return query.exit_code is not None and (query.exit_code > BY_SIGNAL or query.exit_code == OUT_OF_TIME)


def _returned(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield the condition that the last run ended with the code, or in a way that ``run`` and ``wait`` report by it.

    Such endings are rare, so the partial indexes find them. Each way is a pair of conditions: an index answers the
    first, and the second is checked on each row found.
    """
    if query.exit_code is None or not _means_more(query):
        return
    by_code = sa.and_(jobs.c.exit_code == query.exit_code, jobs.c.exit_code != 0)
    ways = [(by_code, sa.true()), *_without_the_code(query.exit_code)]
    if all(_are_few(connection, known) for known, _ in ways):
        yield jobs.c.id.in_(sa.union_all(*(sa.select(jobs.c.id).where(*way) for way in ways)))
    else:  # without an index for one of the ways, SQLite walks along the order instead of sorting all matches
        walks = connection.dialect.name == "sqlite"
        code = _unindexed(jobs.c.exit_code) if walks else jobs.c.exit_code
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


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownDevice:
    """A device in the history database: its name in the newest run that reported one, and its range of jobs."""

    uuid: str
    name: str | None
    first_job: int
    last_job: int


def devices(connection: sa.Connection) -> list[KnownDevice]:
    """Return every device in the history database. Each costs a few steps in the index, not a full scan."""
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
