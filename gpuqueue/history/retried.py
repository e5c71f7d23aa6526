"""Finds the jobs that were retried: a retry names the job in its request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.history.tables import jobs

if TYPE_CHECKING:
    from collections.abc import Collection


#: Most jobs among which the retries of one are looked for.
MOST_SEARCHED = 5000


def retries_of(connection: sa.Connection, job_id: int, user: str) -> list[int]:
    """Return the ids of the retries of a job, the oldest first, among the next MOST_SEARCHED jobs of *user*."""
    later = sa.select(jobs.c.id, jobs.c.spec).where(jobs.c.user_name == user, jobs.c.id > job_id)
    newer = later.where(jobs.c.array_id.is_(None)).order_by(jobs.c.id).limit(MOST_SEARCHED).subquery()
    named = newer.c.spec.contains('"retry_of"', autoescape=True)
    found = connection.execute(sa.select(newer.c.id, newer.c.spec).where(named).order_by(newer.c.id))
    return [row.id for row in found if json.loads(row.spec).get("retry_of") == job_id]


def retried(connection: sa.Connection, job_ids: Collection[int]) -> set[int]:
    """Return which of *job_ids* have a retry. A retry has a higher id than its job."""
    if not job_ids:
        return set()
    names_one = jobs.c.spec.contains('"retry_of"', autoescape=True)
    found = connection.execute(sa.select(jobs.c.spec).where(jobs.c.id > min(job_ids), names_one)).scalars()
    return {int(plain["retry_of"]) for plain in map(json.loads, found) if plain.get("retry_of")} & {*job_ids}
