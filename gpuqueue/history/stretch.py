"""By how much runs took longer beside others on their devices than alone, in SQL.

Compared are runs that ended well, of the same user, command and device model, where both are known. Whether others were
on a device is known from the samples (``run_devices.shared``): one sample is enough, so a run that shared its device
for a moment counts in full, and the real stretch is larger than what is found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from gpuqueue.history.tables import jobs, run_devices, runs
from gpuqueue.model.run import EndingKind
from gpuqueue.model.statistics import Stretch

if TYPE_CHECKING:
    from datetime import datetime


def stretch(connection: sa.Connection, *, since: datetime, until: datetime, user: str | None) -> Stretch | None:
    """Return the stretch of the runs that ended from *since* to *until* (exclusive), None without any to compare."""
    rows = connection.execute(_by_command(_runs(since, until), user)).all()
    alone_s = sum(row.shared * row.alone_s / row.alone for row in rows)
    if not alone_s:
        return None
    return Stretch(
        factor=sum(row.shared_s for row in rows) / alone_s,
        commands=len(rows),
        shared_runs=sum(row.shared for row in rows),
        alone_runs=sum(row.alone for row in rows),
    )


def _runs(since: datetime, until: datetime) -> sa.Subquery:
    """Return each run whose devices are known, with 1 if it shared any of them."""
    return (
        sa.select(
            runs.c.job_id,
            runs.c.duration_s,
            sa.func.max(sa.case((run_devices.c.shared, 1), else_=0)).label("shared"),
            sa.func.min(run_devices.c.name).label("model"),
        )
        .join(run_devices, (run_devices.c.job_id == runs.c.job_id) & (run_devices.c.attempt == runs.c.attempt))
        .where(
            runs.c.ended_at >= since,
            runs.c.ended_at < until,
            runs.c.ending == EndingKind.EXITED.value,
            runs.c.exit_code == 0,
            runs.c.duration_s > 0,
        )
        .group_by(runs.c.job_id, runs.c.attempt, runs.c.duration_s)
        .having(sa.func.count() == sa.func.count(run_devices.c.shared))
        .subquery("each_run")
    )


def _by_command(each: sa.Subquery, user: str | None) -> sa.Select[tuple[int, float, int, float]]:
    """Return the numbers and the total seconds of shared and unshared runs, for each command that has both."""
    alone = 1 - each.c.shared
    shared, several = sa.func.sum(each.c.shared), sa.func.sum(alone)
    found = (
        sa.select(
            shared.label("shared"),
            sa.func.sum(each.c.shared * each.c.duration_s).label("shared_s"),
            several.label("alone"),
            sa.func.sum(alone * each.c.duration_s).label("alone_s"),
        )
        .join(jobs, jobs.c.id == each.c.job_id)
        .group_by(jobs.c.user_name, jobs.c.program, jobs.c.command, each.c.model)
        .having((shared > 0) & (several > 0))
    )
    return found if user is None else found.where(jobs.c.user_name == user)
