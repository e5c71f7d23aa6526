"""Sums up the runs of a period, in SQL: who held which device for how long, asked against used, waits, endings.

The period comes as a small table of steps (one, or one for each day), and each run meets the steps that it reaches
into. So one statement answers for a period, for each of its days, and for each device step by step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from gpuqueue.book.labels import device_labels
from gpuqueue.book.tables import UtcDateTime, jobs, run_devices, runs
from gpuqueue.device import DeviceKind
from gpuqueue.figures import By, Course, Figures, Group, Statistics
from gpuqueue.run import EndingKind

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Which values of a group's columns it has.
Key = tuple[Any, ...]
Steps = list[tuple[datetime, datetime]]


class _seconds(FunctionElement[float]):  # noqa: N801 - in SQL it is a function
    """A moment in seconds since 1970; SQLite's calendar is good to a tenth of a millisecond."""

    type = sa.Double()
    inherit_cache = True


@compiles(_seconds, "sqlite")
def _in_sqlite(element: Any, compiler: Any, **given: Any) -> str:
    return f"((julianday({compiler.process(element.clauses, **given)}) - 2440587.5) * 86400.0)"


@compiles(_seconds, "postgresql")
def _in_postgresql(element: Any, compiler: Any, **given: Any) -> str:
    return f"CAST(EXTRACT(EPOCH FROM {compiler.process(element.clauses, **given)}) AS DOUBLE PRECISION)"


def statistics(
    connection: sa.Connection, *, by: By, since: datetime, until: datetime, user: str | None = None
) -> Statistics:
    """Return what the runs from *since* to *until* (not included) come to, of *user* or of all, grouped."""
    whole = [(since, until)]
    total = _grouped(connection, whole, (), user).get((), Figures())
    groups = _days(connection, since, until, user) if by is By.DAY else _groups(connection, by, whole, user)
    return Statistics(by=by, since=since, until=until, groups=tuple(groups), total=total)


def course(
    connection: sa.Connection, *, since: datetime, until: datetime, count: int, user: str | None = None
) -> Course:
    """Return how the time from *since* to *until* went, in *count* equal steps."""
    bounds = [since + (until - since) * (number / count) for number in range(count)] + [until]
    steps = list(pairwise(bounds))
    together = _grouped(connection, steps, ("step",), user)
    apart = _grouped(connection, steps, ("device", "step"), user)
    labels = device_labels(connection, {uuid for uuid, _ in apart})
    return Course(
        bounds=tuple(bounds),
        steps=tuple(together.get((number,), Figures()) for number in range(count)),
        devices=tuple(
            (labels[uuid], tuple(apart.get((uuid, number), Figures()) for number in range(count)))
            for uuid in sorted(labels, key=lambda each: _natural(labels[each]))
        ),
    )


def local_days(since: datetime, until: datetime) -> Steps:
    """Return the local days from *since* to *until*; the first and the last may be a part of one."""
    steps = []
    start = since
    while start < until:
        here = start.astimezone()
        midnight = (here + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        end = min(until, midnight.astimezone())  # once more: the zone's offset may be another there
        steps.append((start, end))
        start = end
    return steps


def _days(connection: sa.Connection, since: datetime, until: datetime, user: str | None) -> list[Group]:
    days = local_days(since, until)
    found = _grouped(connection, days, ("step",), user)
    dates = [start.astimezone().date().isoformat() for start, _ in days]
    return [Group(key=date, label=date, figures=found.get((number,), Figures())) for number, date in enumerate(dates)]


def _groups(connection: sa.Connection, by: By, whole: Steps, user: str | None) -> list[Group]:
    found = _grouped(connection, whole, (by.value,), user)
    labels = device_labels(connection, {key for (key,) in found}) if by is By.DEVICE else {}
    groups = [Group(key=key, label=labels.get(key) or key, figures=figures) for (key,), figures in found.items()]
    if by is By.DEVICE:
        return sorted(groups, key=lambda group: _natural(group.label))
    return sorted(groups, key=lambda group: (-group.figures.gpu_s, -group.figures.cpu_s, group.key))


def _natural(label: str) -> tuple[str, int, str]:
    """Return where ``nodeA:10`` stands: after ``nodeA:9``."""
    host, _, index = label.rpartition(":")
    return (host, int(index), "") if index.isdecimal() else (host, -1, label)


def _grouped(connection: sa.Connection, steps: Steps, names: Sequence[str], user: str | None) -> dict[Key, Figures]:
    """Return the figures of each group; *names* say what tells groups apart: user, host, device, step."""
    reach = _reach(steps, user)
    found: dict[Key, dict[str, Any]] = defaultdict(dict)
    for statement in (_of_runs(reach, names), _of_devices(reach, names), _of_waits(reach, names)):
        for row in connection.execute(statement):
            found[tuple(row[: len(names)])].update(row._mapping)  # noqa: SLF001 - its public name for a row's mapping
    known = Figures.__dataclass_fields__
    return {
        key: replace(Figures(), **{name: value for name, value in row.items() if name in known and value is not None})
        for key, row in found.items()
        if row.get("runs")
    }


def _reach(steps: Steps, user: str | None) -> sa.CTE:
    """Return each run with each step that it reaches into, and what is needed of its job."""
    moments = [
        sa.select(
            sa.literal(number).label("step"),
            sa.literal(start, UtcDateTime).label("step_start"),
            sa.literal(end, UtcDateTime).label("step_end"),
        )
        for number, (start, end) in enumerate(steps)
    ]
    step = sa.union_all(*moments).cte("steps") if len(moments) > 1 else moments[0].cte("steps")
    since, until = steps[0][0], steps[-1][1]
    in_step = sa.or_(runs.c.ended_at > step.c.step_start, runs.c.claimed_at >= step.c.step_start)
    found = (
        sa.select(runs, jobs.c.user_name, jobs.c.submitted_at, step)
        .join(jobs, jobs.c.id == runs.c.job_id)
        .join(step, (runs.c.claimed_at < step.c.step_end) & sa.or_(runs.c.ended_at.is_(None), in_step))
        .where(sa.or_(runs.c.ended_at >= since, runs.c.ended_at.is_(None)), runs.c.claimed_at < until)
    )
    return (found if user is None else found.where(jobs.c.user_name == user)).cte("reach")


def _key(reach: sa.CTE, names: Sequence[str]) -> list[sa.ColumnElement[Any]]:
    columns = {
        "user": reach.c.user_name,
        "host": reach.c.host,
        "device": run_devices.c.device_uuid,
        "step": reach.c.step,
    }
    return [columns[name].label(f"key_{name}") for name in names]


def _on_devices(reach: sa.CTE) -> sa.Join:
    return sa.join(
        reach, run_devices, (run_devices.c.job_id == reach.c.job_id) & (run_devices.c.attempt == reach.c.attempt)
    )


def _from(reach: sa.CTE, names: Sequence[str]) -> sa.FromClause:
    return _on_devices(reach) if "device" in names else reach


def _count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))


def _of_runs(reach: sa.CTE, names: Sequence[str]) -> sa.Select[Any]:
    """Count the runs, and how those ended that ended here."""
    key = _key(reach, names)
    here = (reach.c.ended_at >= reach.c.step_start) & (reach.c.ended_at < reach.c.step_end)
    well = (reach.c.ending == EndingKind.EXITED.value) & (reach.c.exit_code == 0)
    kinds = (EndingKind.CANCELLED, EndingKind.OUT_OF_MEMORY, EndingKind.TIMED_OUT, EndingKind.LOST)
    return (
        sa.select(
            *key,
            sa.func.count(reach.c.job_id.distinct()).label("jobs"),
            sa.func.count().label("runs"),
            _count(here).label("ended"),
            _count(here & well).label("succeeded"),
            *(_count(here & (reach.c.ending == kind.value)).label(kind.value) for kind in kinds),
        )
        .select_from(_from(reach, names))
        .group_by(*key)
    )


def _of_devices(reach: sa.CTE, names: Sequence[str]) -> sa.Select[Any]:
    """Sum up the time on each device, and memory and utilisation weighted by it."""
    key = _key(reach, names)
    start = sa.case((reach.c.claimed_at < reach.c.step_start, reach.c.step_start), else_=reach.c.claimed_at)
    over = sa.or_(reach.c.ended_at.is_(None), reach.c.ended_at > reach.c.step_end)
    end = sa.case((over, reach.c.step_end), else_=reach.c.ended_at)
    # A store's clock may have been set back: nothing took less than no time.
    took = _seconds(end) - _seconds(start)
    held = sa.case((took > 0, took), else_=0.0)
    # A device that nobody told the kind of counts as a GPU: its run was lost before it started.
    on_cpu = sa.func.coalesce(run_devices.c.kind, "") == DeviceKind.CPU.value
    measured = run_devices.c.peak_bytes.is_not(None)
    looked_at = run_devices.c.utilisation_mean.is_not(None)
    busy = sa.func.sum(sa.case((looked_at, held * run_devices.c.utilisation_mean), else_=0.0))
    weight = sa.func.sum(sa.case((looked_at, held), else_=0.0))
    return (
        sa.select(
            *key,
            sa.func.sum(sa.case((on_cpu, 0.0), else_=held)).label("gpu_s"),
            sa.func.sum(sa.case((on_cpu, held), else_=0.0)).label("cpu_s"),
            sa.func.sum(held * run_devices.c.lease_bytes).label("asked_byte_s"),
            sa.func.sum(sa.case((measured, held * run_devices.c.lease_bytes), else_=0.0)).label("measured_byte_s"),
            sa.func.sum(sa.case((measured, held * run_devices.c.peak_bytes), else_=0.0)).label("peak_byte_s"),
            sa.func.sum(sa.case((measured, held), else_=0.0)).label("measured_s"),
            (busy / sa.func.nullif(weight, 0.0)).label("utilisation"),
        )
        .select_from(_on_devices(reach))
        .group_by(*key)
    )


def _of_waits(reach: sa.CTE, names: Sequence[str]) -> sa.Select[Any]:
    """Rank the waits of jobs that were first claimed here. Percentiles are nearest ranks: waits that there were."""
    key = _key(reach, names)
    took = _seconds(reach.c.claimed_at) - _seconds(reach.c.submitted_at)
    wait = sa.case((took > 0, took), else_=0.0)
    ranked = (
        sa.select(
            *key,
            wait.label("wait_s"),
            sa.func.row_number().over(partition_by=key or None, order_by=wait).label("rank"),
            sa.func.count().over(partition_by=key or None).label("waits"),
        )
        .select_from(_from(reach, names))
        .where(reach.c.attempt == 1, reach.c.claimed_at >= reach.c.step_start)
        .subquery("ranked")
    )
    again = [ranked.c[f"key_{name}"] for name in names]

    def at(share: float) -> sa.ColumnElement[float]:
        return sa.func.min(sa.case((ranked.c.rank >= share * ranked.c.waits, ranked.c.wait_s)))

    return sa.select(
        *again,
        sa.func.count().label("waits"),
        at(0.5).label("wait_median_s"),
        at(0.95).label("wait_p95_s"),
        sa.func.max(ranked.c.wait_s).label("wait_max_s"),
    ).group_by(*again)
