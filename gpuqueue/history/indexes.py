"""The indexes of the tables.

They are apart from the tables because only migrations need them. An index with options for PostgreSQL makes SQLAlchemy
load its whole PostgreSQL dialect, which would take a tenth of the time of each ``gpuqueue history``.
"""

from __future__ import annotations

import sqlalchemy as sa

from gpuqueue.history.past_runs import TELLING
from gpuqueue.history.tables import (
    access_tokens,
    audit_entries,
    job_events,
    job_tags,
    jobs,
    metadata,
    notifications,
    run_devices,
    run_metrics,
    runs,
)


def _where(condition: str, *columns: sa.Column[object]) -> sa.Index:
    """Return a partial index of the rows for which *condition* is true."""
    only = sa.text(condition)
    return sa.Index(None, *columns, sqlite_where=only, postgresql_where=only)


#: The tables with their indexes.
METADATA = metadata
INDEXES = (
    sa.Index(None, jobs.c.user_name, jobs.c.id),
    sa.Index(None, jobs.c.state, jobs.c.id),
    sa.Index(None, jobs.c.submitted_at, jobs.c.id),
    sa.Index(None, jobs.c.ended_at),
    sa.Index(None, jobs.c.name, jobs.c.id),
    sa.Index(None, jobs.c.host, jobs.c.id),
    sa.Index(None, jobs.c.duration_s, jobs.c.id),
    sa.Index(None, jobs.c.peak_bytes, jobs.c.id),
    # Nearly all runs exit with code 0: only other endings and codes are indexed.
    _where("ending <> 'exited'", jobs.c.ending, jobs.c.id),
    _where("exit_code <> 0", jobs.c.exit_code, jobs.c.id),
    _where("array_id IS NOT NULL", jobs.c.array_id, jobs.c.array_index),
    # Only jobs whose runs show how much memory a program needs. A queue of pending jobs of it is not read.
    _where(TELLING, jobs.c.user_name, jobs.c.program, jobs.c.id),
    sa.Index(None, job_tags.c.tag, job_tags.c.job_id),
    sa.Index(None, runs.c.ended_at),
    sa.Index(None, run_devices.c.device_uuid, run_devices.c.job_id),
    sa.Index(None, run_metrics.c.name, run_metrics.c.last_value, run_metrics.c.job_id),
    _where("outcome IS NULL", notifications.c.job_id),
    sa.Index(None, job_events.c.job_id),
    sa.Index(None, access_tokens.c.account),
    sa.Index(None, audit_entries.c.at),
    sa.Index(None, audit_entries.c.account, audit_entries.c.at),
    sa.Index(None, audit_entries.c.action, audit_entries.c.at),
)
