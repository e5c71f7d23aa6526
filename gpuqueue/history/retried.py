"""Finds the jobs that were retried: a retry names the job in its request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.history.tables import jobs

if TYPE_CHECKING:
    from collections.abc import Collection


def retried(connection: sa.Connection, job_ids: Collection[int]) -> set[int]:
    """Return which of *job_ids* have a retry. A retry has a higher id than its job."""
    if not job_ids:
        return set()
    names_one = jobs.c.spec.contains('"retry_of"', autoescape=True)
    found = connection.execute(sa.select(jobs.c.spec).where(jobs.c.id > min(job_ids), names_one)).scalars()
    return {int(plain["retry_of"]) for plain in map(json.loads, found) if plain.get("retry_of")} & {*job_ids}
