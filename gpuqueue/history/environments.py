"""The environments of jobs: written with the job, without secrets after its end, and removed some time later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.codec.request import decode_environment, decode_spec, whole_payload, with_environment
from gpuqueue.errors import Unreadable
from gpuqueue.history.records import parts
from gpuqueue.history.tables import environments, jobs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from datetime import datetime

    from gpuqueue.history.columns import Row
    from gpuqueue.model.environment import Environment

#: Most environments that one transaction removes.
_AT_ONCE = 1000


def write(connection: sa.Connection, rows: Mapping[int, Row], ended: Collection[int]) -> None:
    """Write *rows*, by job, and remove the secrets of the jobs that have *ended*."""
    new = [{**row, "secrets": None} if job_id in ended else row for job_id, row in rows.items()]
    from gpuqueue.history import bulk  # noqa: PLC0415 - its dialects take milliseconds, and readers need none

    bulk.put(connection, environments, new)
    for some in parts(set(ended) - set(rows)):
        theirs = sa.update(environments).where(environments.c.job_id.in_(some), environments.c.secrets.is_not(None))
        connection.execute(theirs.values(secrets=None))


def restored(connection: sa.Connection, payloads: Mapping[int, str]) -> dict[int, str]:
    """Return *payloads*, the requests of jobs by id, with the environments that are kept."""
    found = dict(payloads)
    for job_id, environment in _of(connection, payloads):
        found[job_id] = with_environment(payloads[job_id], environment.variables)
    return found


def kept(connection: sa.Connection, job_id: int, array_id: int | None = None) -> Environment | None:
    """Return what is kept of the environment of a job, or of the array *array_id* that the job is a member of.

    Return None if it is removed, or if the account of this connection may not read environments.

    Raises:
        Unreadable: the request of the job cannot be read, or there is none.

    """
    ids = [job_id] if array_id is None else [job_id, array_id]
    rows = connection.execute(sa.select(jobs.c.id, jobs.c.spec).where(jobs.c.id.in_(ids)))
    requests = {row.id: row.spec for row in rows}
    array = None if array_id is None else requests.get(array_id)
    decode_spec(whole_payload(requests.get(job_id, array) or "", array))
    found = dict(_of(connection, ids)) if _may_read(connection) else {}
    return found.get(job_id) or (None if array_id is None else found.get(array_id))


def forget(connection: sa.Connection, ended_before: datetime) -> int:
    """Remove environments of jobs that ended before this time. Return the number, which is 0 when none is left."""
    old = sa.select(environments.c.job_id).join(jobs, jobs.c.id == environments.c.job_id)
    some = old.where(jobs.c.ended_at < ended_before).limit(_AT_ONCE)
    gone = sa.delete(environments).where(environments.c.job_id.in_(some.scalar_subquery()))
    return connection.execute(gone).rowcount


def _of(connection: sa.Connection, job_ids: Iterable[int]) -> Iterator[tuple[int, Environment]]:
    """Yield the environments of *job_ids* that are kept. Skip an unreadable one."""
    for some in parts(job_ids):
        for row in connection.execute(sa.select(environments).where(environments.c.job_id.in_(some))).all():
            try:
                yield row.job_id, decode_environment(row.variables, row.secrets)
            except Unreadable:
                continue


def _may_read(connection: sa.Connection) -> bool:
    """Return whether the account of *connection* may read environments. On PostgreSQL clients may have less rights."""
    if connection.dialect.name != "postgresql":
        return True
    return bool(connection.scalar(sa.select(sa.func.has_table_privilege("environments", "SELECT"))))
