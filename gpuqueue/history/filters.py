"""Turns a question to the history into SQL that an index can answer, page by page, in any order.

Each page is found by its key (keyset paging): the order's value and the id of the last job seen. It costs the same
for the first page and for the thousandth, and jobs that come in meanwhile shift nothing.
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

#: What a shell adds to the number of the signal that killed a process, for an exit code.
BY_SIGNAL = 128
#: What ``run`` and ``wait`` return for a job that reached its time limit, and for one that was cancelled.
OUT_OF_TIME, CANCELLED = 124, 130

#: The column of each order of figures; None in it is not known, and stands last.
_COLUMNS: dict[Sort, sa.Column[Any]] = {
    Sort.ENDED: jobs.c.ended_at,
    Sort.DURATION: jobs.c.duration_s,
    Sort.PEAK: jobs.c.peak_bytes,
}
#: What most jobs have, and so is in no index: that another value is meant must be said for its index to be used.
_USUAL: dict[sa.Column[Any], Any] = {jobs.c.ending: EndingKind.EXITED.value, jobs.c.exit_code: 0}
#: Up to so many jobs are few: they are found, looked at and put in order within some hundredths of a second. Of more
#: than that among a million, a walk along the order has a page after some ten thousand steps.
FEW = 5_000


def page(connection: sa.Connection, query: HistoryQuery) -> Sequence[sa.RowMapping]:
    """Return the rows of ``jobs`` that match, in the order that was asked for, at most ``limit`` of them.

    Raises:
        JobNotFound: ``after_id`` is no job of this book, and the order needs to know where it stands.

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
    """Yield conditions and order of each part of the list: first what the order knows a value of, then the rest."""
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
    """Yield a part for each user: names go up while ids go down, and no index has both ways in one."""
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
    """Return what is true of the jobs behind the one that has *value*."""
    if value is None or query.after_id is None:
        return []
    further = column > value if query.reverse else column < value
    at_least = column >= value if query.reverse else column <= value  # what an index can start from
    return [at_least, sa.or_(further, _beyond(jobs.c.id, query.after_id, query))]


def _beyond(column: sa.Column[int], job_id: int, query: HistoryQuery) -> Condition:
    return column > job_id if query.reverse else column < job_id


def _place(connection: sa.Connection, column: sa.Column[Any], job_id: int) -> Any:
    found = connection.execute(sa.select(column).where(jobs.c.id == job_id)).first()
    if found is None:
        raise JobNotFound(f"there is no job {job_id} in the history to go on after: take the last id of a page")
    return found[0]


def _conditions(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield what the row of a job itself must be like.

    In the order of the ids SQLite would collect all jobs since a time by the time's index, and put them in order. Few
    are found so (:func:`_rare`); where they are many, it walks along the ids.
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
    """Yield what is one value of the job's, or one of some.

    In an order of figures SQLite would collect all jobs of a user by the user's index, and put them in order. That is
    well where they are few; where they are many, a plus sign tells it to walk along the order instead.
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
    """Yield each column that must have one of some values, with these."""
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
    """Yield for each bound that few jobs lie in that the job is one of these.

    A list is found by walking along its order until there are enough. Where a bound lets few jobs through, or none,
    that would be a walk through all of them, and without statistics SQLite cannot know. So a few steps in the bound's
    own index say how many there are: few are taken from there, and of many a walk soon has enough.
    """
    for column, compare, bound in _bounds(query):
        if bound is None or column is jobs.c.id:
            continue
        within = compare(column, bound)
        if _are_few(connection, within):
            yield jobs.c.id.in_(sa.select(jobs.c.id).where(within).correlate(None))


def _from_the_time_on(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield from which id on the order of ids comes to the time that is asked for, where many jobs lie before it.

    Ids go up with time, but for a clock that was set back; so the index of the time tells the end of it, exactly.
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
    # As it stands, a database would walk along the ids for the first one of them: what this is to spare.
    end = (sa.func.min if query.reverse else sa.func.max)(_unindexed(jobs.c.id))
    first = sa.select(end).where(period).correlate(None).scalar_subquery()
    yield jobs.c.id >= first if query.reverse else jobs.c.id <= first


def _tagged(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield for each word that it is a tag of the job: few such jobs are looked up, of many a walk soon has enough."""
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
    """Return whether ``run`` and ``wait`` return the exit code also for what has none, or another one, of its own."""
    return query.exit_code is not None and (query.exit_code > BY_SIGNAL or query.exit_code == OUT_OF_TIME)


def _returned(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield that the last run ended with a code, or in a way for which ``run`` and ``wait`` return that code.

    Nearly all runs end otherwise, so the indexes of what is unusual find them. Of each way the first condition is what
    an index knows, and the second what is left to be looked at.
    """
    if query.exit_code is None or not _means_more(query):
        return
    by_code = sa.and_(jobs.c.exit_code == query.exit_code, jobs.c.exit_code != 0)
    ways = [(by_code, sa.true()), *_without_the_code(query.exit_code)]
    if all(_are_few(connection, known) for known, _ in ways):
        yield jobs.c.id.in_(sa.union_all(*(sa.select(jobs.c.id).where(*way) for way in ways)))
    else:  # where one of them has no index SQLite walks along the order, and does not collect all of each and sort them
        walks = connection.dialect.name == "sqlite"
        code = _unindexed(jobs.c.exit_code) if walks else jobs.c.exit_code
        yield sa.or_(code == query.exit_code, *(sa.and_(*way) for way in ways[1:]))


def _without_the_code(code: int) -> Iterator[tuple[Condition, Condition]]:
    """Yield the ways to end with *code* in :attr:`gpuqueue.model.run.Ending.shell_code` and without it in the book."""
    if code == OUT_OF_TIME:
        yield _ended_so(EndingKind.TIMED_OUT), sa.true()
        return
    if code == CANCELLED:
        yield _ended_so(EndingKind.CANCELLED), sa.true()
        yield jobs.c.state == JobState.CANCELLED.value, jobs.c.ending.is_(None)  # while it waited
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
    """Yield that one of the job's runs was on a device that is meant.

    The devices are looked up first: there are few, and an exact UUID is what an index is good for. The jobs that they
    had bound the search, so that a card that left last year is not looked for in all that came after it.
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
    if query.sort is Sort.ID:  # in another order SQLite would search by these bounds, and then sort it all
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
