"""Translates a history query into SQL that an index can answer, page by page, in any order.

A page is found by its key (keyset paging): the sort value and the id of the last job seen. The first page costs as much
as the thousandth, and new jobs do not shift any page.

A common text is found by walking along the list, a rare one by an index. A walk fills a page with a common text after a
few steps, but would pass a million jobs for a rare text. The text index (:mod:`gpuqueue.history.text_index`) finds a
rare text at once, but would return half a million jobs for a common one. Which case applies is unknown beforehand. So
the search walks through the next jobs of the list first, and only then uses the index.

Name patterns are those of a shell and of :mod:`fnmatch`: ``*``, ``?``, ``[abc]``, ``[!abc]``. Case matters.

A page is found by walking along the order until the page is full. If few jobs match a condition, the walk would pass
nearly all jobs, and SQLite has no statistics to know that. So the matching jobs are counted first, with a few steps in
an index. Few jobs are selected by that index. With many jobs, a walk fills a page soon.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.sql.operators import custom_op

from gpuqueue.errors import JobNotFound
from gpuqueue.history import text_index
from gpuqueue.history.tables import job_tags, jobs, run_devices, run_metrics, runs, safe
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.history_query import Sort
from gpuqueue.model.job import JobState
from gpuqueue.model.run import BY_SIGNAL, EndingKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuqueue.model.history_query import HistoryQuery

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


#: The column of each sort order by a time or a number. None means unknown and sorts last.
_COLUMNS: dict[Sort, sa.Column[Any]] = {
    Sort.ENDED: jobs.c.ended_at,
    Sort.DURATION: jobs.c.duration_s,
    Sort.PEAK: jobs.c.peak_bytes,
}
#: The value of most jobs, which the partial index of the column leaves out. SQL must exclude this value, or the
#: database does not use the index.
_USUAL: dict[sa.Column[Any], Any] = {jobs.c.ending: EndingKind.EXITED.value, jobs.c.exit_code: 0}
#: Exit codes of ``run`` and ``wait`` for a job that reached its time limit, and for a cancelled job.
OUT_OF_TIME, CANCELLED = 124, 130
#: A set, or any other single character. A bracket that is never closed stands for itself.
_PATTERN_PIECE = re.compile(r"\[(?P<no>!?)(?P<set>\]?[^\]]*)\]|(?P<sign>.)", re.DOTALL)
_WILD = frozenset("*?[")
#: Characters with a special meaning within a set of a regular expression.
_SPECIAL = re.compile(r"([]\[\\^])")
#: Conditions and order of one part of the list. The parts in sequence are the whole list.
Part = tuple[list[Condition], list[Any]]
#: Number of jobs that are searched before the index is used. That takes about as long as using the index.
NEAR = 1000
#: Length of the shortest text that the index can find, in characters: that of a trigram.
SHORTEST = 3
#: Most trigrams in a query. More trigrams hardly narrow the result.
_MOST_TRIGRAMS = 24
_text_index = sa.table(text_index.TABLE, sa.column("rowid", sa.BigInteger), sa.column(text_index.TABLE))


def page(connection: sa.Connection, query: HistoryQuery, *, with_members: bool = True) -> Sequence[sa.RowMapping]:
    """Return the rows of ``jobs`` that match, in the order of the query, at most ``limit`` of them.

    Without members, those of arrays are left out.

    Raises:
        JobNotFound: ``after_id`` is not in the history database, and the order needs the row of that job.

    """
    conditions = [*_all_conditions(connection, query), *([] if with_members else [jobs.c.array_id.is_(None)])]
    rows: list[sa.RowMapping] = []
    for part in text_parts(connection, query, _parts(connection, query)):
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
        *_exit_code_conditions(connection, query),
    ]


def _parts(connection: sa.Connection, query: HistoryQuery) -> Iterator[Part]:
    """Yield conditions and order of each part of the list: jobs with a known sort value first, then the rest."""
    by_id = jobs.c.id.asc() if query.reverse else jobs.c.id.desc()
    beyond = None if query.after_id is None else _beyond(jobs.c.id, query.after_id, query)
    if query.is_by_id:
        yield ([] if beyond is None else [beyond]), [by_id]
        return
    if query.metric is None and query.sort is Sort.USER:
        yield from _by_user(connection, query, by_id)
        return
    column, same = _COLUMNS.get(query.sort, jobs.c.id), []
    unknown: list[Condition] = [column.is_(None)]
    if query.metric is not None:
        column, same = run_metrics.c.last_value, _last_of(query.metric)
        unknown = [~sa.exists().where(*same, column.is_not(None))]
    value = None if query.after_id is None else _sort_value(connection, column, query.after_id, same)
    if query.after_id is None or value is not None:
        yield [*same, column.is_not(None), *_from(column, value, query)], _order(column, query)
        yield unknown, [by_id]
    elif beyond is not None:
        yield [*unknown, beyond], [by_id]


def _by_user(connection: sa.Connection, query: HistoryQuery, by_id: sa.ColumnElement[int]) -> Iterator[Part]:
    """Yield one part for each user: names ascend while ids descend, and no index has both directions."""
    column = jobs.c.user_name
    end = sa.func.max if query.reverse else sa.func.min
    name: str | None
    if query.after_id is None:
        name = connection.scalar(sa.select(end(column)))
    else:
        name = _sort_value(connection, column, query.after_id)
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


def _beyond(column: sa.ColumnElement[int], job_id: int, query: HistoryQuery) -> Condition:
    return column > job_id if query.reverse else column < job_id


def _last_of(metric: str) -> list[Condition]:
    """Return the conditions for the row of a metric of the current or last run of a job."""
    key = run_metrics.c.job_id == jobs.c.id, run_metrics.c.attempt == jobs.c.attempt
    return [*key, run_metrics.c.name == metric]


def _sort_value(connection: sa.Connection, column: sa.Column[Any], job_id: int, same: Sequence[Condition] = ()) -> Any:
    """Return the sort value of a job, None if it has none. *same* are the conditions of a column of another table."""
    source = jobs.outerjoin(column.table, sa.and_(*same)) if same else jobs
    found = connection.execute(sa.select(column).select_from(source).where(jobs.c.id == job_id)).first()
    if found is None:
        raise JobNotFound(f"there is no job {job_id} in the history to continue after: take the last id of a page")
    return found[0]


def _conditions(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield the conditions on the row of the job itself.

    In the order of ids, SQLite would collect all jobs of a time range by the index on times, and sort them. A unary
    plus disables that index, so SQLite walks along the ids. Where few jobs match, :func:`_rare` selects them.
    """
    along_ids = connection.dialect.name == "sqlite" and query.is_by_id
    for column, compare, bound in _bounds(query):
        if bound is not None:
            yield compare(unindexed(column) if along_ids and column is not jobs.c.id else column, bound)
    if query.name is not None and _is_pattern(query):
        yield matches_pattern(connection, jobs.c.name, query.name)
    if query.text is not None:
        yield has_text(query.text)


def _same(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield the conditions that a column has one of some values.

    In an order by a time or a number, SQLite would collect all jobs of a user by the index on users, and sort them.
    That is fast for few jobs. For many jobs, a unary plus disables that index, so SQLite walks along the order.
    """
    along_figures = connection.dialect.name == "sqlite" and (query.metric is not None or query.sort in _COLUMNS)
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
            (jobs.c.exit_code, None if _means_other_codes(query) else query.exit_code),
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
    if not query.is_by_id or near is None:
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
    return query.name is not None and is_pattern(query.name)


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
    if query.is_by_id:  # in another order SQLite would search by these bounds and then sort all
        yield jobs.c.id.between(min(each.first_job for each in meant), max(each.last_job for each in meant))
    there = run_devices.c.device_uuid.in_([each.uuid for each in meant])
    yield sa.exists().where(run_devices.c.job_id == jobs.c.id, there)


def _means_other_codes(query: HistoryQuery) -> bool:
    """Return whether ``run`` and ``wait`` also return this exit code for endings without a code, or with another."""
    return query.exit_code is not None and (query.exit_code > BY_SIGNAL or query.exit_code == OUT_OF_TIME)


def _exit_code_conditions(connection: sa.Connection, query: HistoryQuery) -> Iterator[Condition]:
    """Yield the condition that the last run ended with the code, or in a way that ``run`` and ``wait`` report by it.

    Such endings are rare, so the partial indexes find them. Each way is a pair of conditions: an index answers the
    first, and the second is checked on each row found.
    """
    if query.exit_code is None or not _means_other_codes(query):
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


def is_pattern(text: str) -> bool:
    """Return whether *text* contains pattern characters."""
    return not _WILD.isdisjoint(text)


def matches_pattern(connection: sa.Connection, column: sa.Column[Any], pattern: str) -> sa.ColumnElement[bool]:
    """Return the condition that *column* equals *pattern* or matches it."""
    like: sa.ColumnElement[bool]
    if connection.dialect.name == "sqlite":
        like = column.op("GLOB", is_comparison=True)("".join(_as_glob(pattern)))
    else:
        like = column.regexp_match(f"^{''.join(_as_regex(pattern))}$")
    return sa.or_(column == pattern, like)


def _as_glob(pattern: str) -> Iterator[str]:
    """Yield *pattern* in the syntax of SQLite's GLOB, where a negated set begins with ``^``."""
    for piece in _PATTERN_PIECE.finditer(pattern):
        sign, members = piece["sign"], piece["set"]
        if sign is None:
            yield f"[{'^' if piece['no'] else ''}{_without_caret(members) if not piece['no'] else members}]"
        else:
            yield "[[]" if sign == "[" else sign


def _without_caret(members: str) -> str:
    """Return *members* with a leading ``^`` moved to the end: at the start it would negate the set."""
    return members[1:] + "^" if members.startswith("^") and len(members) > 1 else members


def _as_regex(pattern: str) -> Iterator[str]:
    """Yield *pattern* as a regular expression of PostgreSQL."""
    for piece in _PATTERN_PIECE.finditer(pattern):
        sign, members = piece["sign"], piece["set"]
        if sign is None:
            meant = _SPECIAL.sub(r"\\\1", members)
            yield f"[{'^' if piece['no'] else ''}{meant}]"
        else:
            yield {"*": ".*", "?": "."}.get(sign) or re.escape(sign)


def has_text(text: str) -> Condition:
    """Return the condition that the command or the note contains *text*, ignoring the case of ASCII letters."""
    return sa.or_(*(each.icontains(text, autoescape=True) for each in (jobs.c.command, jobs.c.note)))


def text_parts(connection: sa.Connection, query: HistoryQuery, plain: Iterator[Part]) -> Iterator[Part]:
    """Yield the parts of the list that must be searched for the text; *plain* are the parts of the whole list.

    If the index returns more than ``FEW`` jobs, the text is common enough to be found by walking.
    """
    if query.text is None or len(query.text) < SHORTEST or not text_index.is_there(connection):
        yield from plain
    elif query.is_by_id:
        for part in plain:
            yield from _along_ids(connection, query, part)
    elif connection.dialect.name == "sqlite":
        ids = _ids_with_text(connection, query, None, FEW + 1)
        narrow = [jobs.c.id.in_(ids)] if len(ids) <= FEW else []
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
    ids = _ids_with_text(connection, query, edge, FEW + 1)
    in_order = connection.dialect.name == "sqlite"
    if ids and (in_order or len(ids) <= FEW):
        yield [jobs.c.id.in_(ids)], order
    if len(ids) > FEW:
        yield [_beyond(jobs.c.id, ids[-1] if in_order else edge, query)], order


def _ids_with_text(connection: sa.Connection, query: HistoryQuery, edge: int | None, most: int) -> Sequence[int]:
    """Return up to *most* jobs that may contain the text. If *edge* is given, return only jobs beyond it."""
    text = str(query.text)
    column: sa.ColumnElement[int] = jobs.c.id
    may_have = has_text(text)
    if connection.dialect.name == "sqlite":
        column = _text_index.c.rowid
        may_have = _text_index.c[text_index.TABLE].op("MATCH", is_comparison=True)(_trigrams(text))
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
    quoted = ('"' + trigram.replace('"', '""') + '"' for trigram in each[:: -(-len(each) // _MOST_TRIGRAMS)])
    return " AND ".join(quoted)


#: Kinds of devices that are named by their kind: a host serves one of them.
WITHOUT_INDEX = frozenset((DeviceKind.CPU.value, DeviceKind.SLURM.value))


def device_labels(connection: sa.Connection, uuids: Iterable[str]) -> dict[str, str]:
    """Return the display name of each device, such as ``nodeA:3``. It is the UUID if nothing else is known."""
    labels = {}
    for uuid in uuids:
        row = _newest(connection, uuid)
        index = None if row is None else row.kind if row.kind in WITHOUT_INDEX else row.host_index
        labels[uuid] = uuid if row is None or index is None else f"{row.host}:{index}"
    return labels


def _newest(connection: sa.Connection, uuid: str) -> sa.Row[Any, Any, Any, Any] | None:
    """Return index, kind and host of a device by its newest run that reported them, and when that was claimed."""
    newest = (
        sa.select(run_devices.c.host_index, run_devices.c.kind, runs.c.host, runs.c.claimed_at)
        .join(runs, (runs.c.job_id == run_devices.c.job_id) & (runs.c.attempt == run_devices.c.attempt))
        .where(run_devices.c.device_uuid == uuid, run_devices.c.kind.is_not(None))
        .order_by(run_devices.c.job_id.desc())
        .limit(1)
    )
    return connection.execute(newest).first()


def gpu_hosts(connection: sa.Connection) -> set[str]:
    """Return the hosts whose latest run had a GPU: one that has run on its CPU since then may have lost them for good.

    Runs on simulated devices do not count.
    """
    rows = [row for each in devices(connection) if (row := _newest(connection, each.uuid)) is not None]
    rows = sorted((row for row in rows if row.kind != DeviceKind.SIMULATED.value), key=lambda row: row.claimed_at)
    latest = {row.host: row.kind for row in rows}
    return {host for host, kind in latest.items() if kind == DeviceKind.GPU.value}


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
