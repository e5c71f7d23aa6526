"""Members of arrays. The history database stores their request once, with the array."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gpuqueue.clock import to_epoch_ms
from gpuqueue.codec.request import decode_spec, of_member
from gpuqueue.errors import Unreadable
from gpuqueue.history.connect import reading
from gpuqueue.history.records import parts, waiting
from gpuqueue.history.tables import jobs, run_metrics
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Indexes, Member, MemberEnds
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpuqueue.model import page
    from gpuqueue.model.page import RecordedMember
else:  # only the page asks for it
    page = later("gpuqueue.model.page")

log = logging.getLogger(__name__)


def with_requests(engine: sa.Engine, events: Sequence[Event]) -> Sequence[Event]:
    """Return *events*, with the member's request added to each first claim of an array member."""
    first_claims = [event for event in events if event.act is Act.CLAIM and "of" in event.fields]
    if not first_claims:
        return events
    known = {
        event.job_id: (event.fields["spec"], to_epoch_ms(event.at))
        for event in events
        if event.act is Act.SUBMIT and "spec" in event.fields
    }
    wanted = {int(event.fields["of"]) for event in first_claims} - set(known)
    if wanted:
        with reading(engine) as connection:
            columns = jobs.c.id, jobs.c.spec, jobs.c.submitted_at
            for row in _of(connection, wanted, *columns):
                known[row.id] = (row.spec, to_epoch_ms(row.submitted_at))
    return [_with_request(event, known) for event in events]


def _with_request(event: Event, known: Mapping[int, tuple[str, int]]) -> Event:
    if event.act is not Act.CLAIM or "of" not in event.fields:
        return event
    member = Member(int(event.fields["of"]), int(event.fields["index"]))
    if member.array_id not in known:
        log.error("job %s cannot be written down: the history does not have its array", member)
        return event
    payload, submitted_ms = known[member.array_id]
    added = {"spec": of_member(payload, member), "submitted": str(submitted_ms)}
    return replace(event, fields={**event.fields, **added})


def requests(connection: sa.Connection, array_ids: Iterable[int]) -> dict[int, str]:
    """Return the payload of each of the arrays, by id. Skip arrays that are not in the history database."""
    return {row.id: row.spec for row in _of(connection, set(array_ids), jobs.c.id, jobs.c.spec)}


def never_began(connection: sa.Connection, array_id: int) -> Indexes:
    """Return the members of an array that were cancelled before a device took them; none for an unknown array.

    These members have no rows. They are derived from the row of the array.
    """
    columns = jobs.c.spec, jobs.c.state, jobs.c.array_left, jobs.c.array_held
    row = connection.execute(sa.select(*columns).where(jobs.c.id == array_id)).first()
    array = decode_spec(row.spec).array if row is not None and row.array_left is not None else None
    if row is None or array is None:
        return Indexes()
    began = connection.execute(sa.select(jobs.c.array_index).where(jobs.c.array_id == array_id)).scalars()
    waits = (index for some in waiting(row.state, row.array_left, row.array_held) for index in some)
    return Indexes.of(set(array.indexes).difference(began, waits))


def ends(connection: sa.Connection, array_id: int) -> MemberEnds | None:
    """Return how the members of an array have ended, None for an unknown job.

    The array is read first: a member that begins in between waits in it.
    """
    columns = jobs.c.spec, jobs.c.state, jobs.c.array_left, jobs.c.array_held
    row = connection.execute(sa.select(*columns).where(jobs.c.id == array_id)).first()
    if row is None:
        return None
    array = decode_spec(row.spec).array
    indexes = Indexes() if array is None else array.indexes
    bad, good = set(indexes), set()
    for some in waiting(row.state, row.array_left or "", row.array_held):
        bad.difference_update(some)
    for each in connection.execute(sa.select(jobs.c.array_index, jobs.c.state).where(jobs.c.array_id == array_id)):
        state = JobState(each.state)
        if state is JobState.SUCCEEDED:
            good.add(each.array_index)
        if state is JobState.SUCCEEDED or not state.is_end:
            bad.discard(each.array_index)
    return MemberEnds(indexes=indexes, good=Indexes.of(good), bad=Indexes.of(bad), is_over=JobState(row.state).is_end)


def recorded(connection: sa.Connection, array_id: int, first: int, last: int) -> dict[int, RecordedMember]:
    """Return the members of an array with an index from *first* to *last* that have a row, by index."""
    columns = (
        *(jobs.c.array_index, jobs.c.state, jobs.c.host, jobs.c.started_at, jobs.c.duration_s, jobs.c.peak_bytes),
        *(jobs.c.exit_code, jobs.c.ending),
    )
    wanted = sa.select(*columns).where(jobs.c.array_id == array_id, jobs.c.array_index.between(first, last))
    return {row.array_index: _recorded(row) for row in connection.execute(wanted)}


def _recorded(row: Any) -> RecordedMember:
    return page.RecordedMember(
        index=row.array_index,
        state=JobState(row.state),
        host=row.host,
        started_at=row.started_at,
        duration_s=row.duration_s,
        peak_bytes=row.peak_bytes,
        exit_code=row.exit_code,
        ending=EndingKind(row.ending) if row.ending else None,
    )


def metrics(
    connection: sa.Connection, array_id: int, indexes: Iterable[int], name: str | None = None
) -> dict[int, dict[str, float]]:
    """Return the last finite values that the current or last runs of these members reported, by index and by name.

    With *name*, only those of that metric.
    """
    same = jobs.c.id == run_metrics.c.job_id, jobs.c.attempt == run_metrics.c.attempt
    wanted = sa.select(jobs.c.array_index, run_metrics.c.name, run_metrics.c.last_value).join_from(
        jobs, run_metrics, sa.and_(*same, jobs.c.array_id == array_id, run_metrics.c.last_value.is_not(None))
    )
    if name is not None:
        wanted = wanted.where(run_metrics.c.name == name)
    found: dict[int, dict[str, float]] = {}
    for some in parts(Member(array_id, index).id for index in indexes):
        for row in connection.execute(wanted.where(jobs.c.id.in_(some))):
            found.setdefault(row.array_index, {})[row.name] = row.last_value
    return found


def last_id_of(connection: sa.Connection, job_id: int) -> int:
    """Return the highest id that belongs to the job *job_id*, or to the array that the job is a member of."""
    columns = jobs.c.array_id, jobs.c.array_left, jobs.c.spec
    row = connection.execute(sa.select(*columns).where(jobs.c.id == job_id)).first()
    if row is None or (row.array_id is None and row.array_left is None):
        return job_id
    array_id = job_id if row.array_id is None else int(row.array_id)
    try:
        array = decode_spec(requests(connection, [array_id]).get(array_id)).array
    except Unreadable:
        return job_id
    return max(job_id, Member(array_id, array.indexes.ranges[-1][-1]).id) if array else job_id


def among(connection: sa.Connection, job_ids: Iterable[int]) -> list[Member]:
    """Return those of *job_ids* that the history database has as members of arrays."""
    rows = _of(connection, job_ids, jobs.c.array_id, jobs.c.array_index)
    return [Member(row.array_id, row.array_index) for row in rows if row.array_id is not None]


def _of(connection: sa.Connection, ids: Iterable[int], *columns: sa.Column[Any]) -> Iterator[sa.Row[Any]]:
    for some in parts(ids):
        yield from connection.execute(sa.select(*columns).where(jobs.c.id.in_(some)))
