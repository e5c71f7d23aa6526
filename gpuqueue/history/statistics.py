"""Statistics of the runs in a period, in SQL: time on devices, requested and used memory, waits, endings, stretch.

The period is a small table of steps (one, or one per day). Each run is joined with the steps that it overlaps. So one
statement answers for a period, for each of its days, and for each device step by step.

The runs are read three times: for the sums, for the time of devices, and for the waits, whose percentiles need the runs
in order. Each time the groups and the total come from the same rows.

The time of a device is shared by its runs: at each moment by their allocated memory. With ``level`` as the memory of
all runs on the device, a run of ``weight`` has the integral of weight / level. So one sweep over the moments at which
runs begin and end gives the integral of 1 / level, and a run has its difference between its end and its begin.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from gpuqueue.history.filters import WITHOUT_INDEX, device_labels
from gpuqueue.history.tables import UtcDateTime, jobs, run_devices, runs
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind
from gpuqueue.model.statistics import By, Course, Figures, Group, Statistics, Stretch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: The values of a group's key columns.
Key = tuple[Any, ...]
Steps = list[tuple[datetime, datetime]]
#: Returns the aggregate columns of rows. The second argument is what a row counts as: 1 or 0.
Sums = Callable[[sa.CTE, sa.ColumnElement[int]], list[sa.ColumnElement[Any]]]

#: The label of runs that exited with code 0, beside the kinds of endings.
_WELL = "succeeded"
#: The endings that are counted separately.
_KINDS = (EndingKind.CANCELLED, EndingKind.OUT_OF_MEMORY, EndingKind.TIMED_OUT, EndingKind.IDLE, EndingKind.LOST)
#: The reported percentiles of waits: the median and the 95th.
_MEDIAN, _MOST = 0.5, 0.95
#: Number of waits that are fetched at a time.
_AT_A_TIME = 10_000


def statistics(
    connection: sa.Connection, *, by: By, since: datetime, until: datetime, user: str | None = None
) -> Statistics:
    """Return statistics of the runs from *since* to *until* (exclusive), grouped, for *user* or for all users."""
    whole = [(since, until)]
    if by is By.DAY:  # a run can be in several days
        total = grouped(connection, whole, (), user).get((), Figures())
        groups = _days(connection, since, until, user)
    else:
        found = grouped(connection, whole, (by.value,), user, total=True)
        total = found.pop((), Figures())
        groups = _groups(connection, by, found)
    longer = stretch(connection, since=since, until=until, user=user)
    first_at, last_at = _reach_of_history(connection, until)
    return Statistics(
        by=by,
        since=since,
        until=until,
        groups=tuple(groups),
        total=total,
        stretch=longer,
        first_at=first_at,
        last_at=last_at,
    )


def _reach_of_history(connection: sa.Connection, until: datetime) -> tuple[datetime | None, datetime | None]:
    """Return when the first job of all was submitted, and when the last run ended: *until* if one goes on."""
    first_at = connection.scalar(sa.select(sa.func.min(jobs.c.submitted_at)))
    goes_on = connection.scalar(sa.select(runs.c.job_id).where(runs.c.ended_at.is_(None)).limit(1))
    return first_at, until if goes_on is not None else connection.scalar(sa.select(sa.func.max(runs.c.ended_at)))


def course(
    connection: sa.Connection, *, since: datetime, until: datetime, count: int, user: str | None = None
) -> Course:
    """Return the figures of *count* equal steps from *since* to *until*."""
    bounds = [since + (until - since) * (number / count) for number in range(count)] + [until]
    steps = list(pairwise(bounds))
    together = grouped(connection, steps, ("step",), user)
    apart = grouped(connection, steps, ("device", "step"), user)
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
    """Return the local days from *since* to *until*. The first and the last day may be partial."""
    steps = []
    start = since
    while start < until:
        here = start.astimezone()
        midnight = (here + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        end = min(until, midnight.astimezone())  # converted again: the zone's offset may differ at midnight
        steps.append((start, end))
        start = end
    return steps


def _days(connection: sa.Connection, since: datetime, until: datetime, user: str | None) -> list[Group]:
    days = local_days(since, until)
    found = grouped(connection, days, ("step",), user)
    dates = [start.astimezone().date().isoformat() for start, _ in days]
    return [Group(key=date, label=date, figures=found.get((number,), Figures())) for number, date in enumerate(dates)]


def _groups(connection: sa.Connection, by: By, found: Mapping[Key, Figures]) -> list[Group]:
    labels = device_labels(connection, {key for (key,) in found}) if by is By.DEVICE else {}
    groups = [Group(key=key, label=labels.get(key) or key, figures=figures) for (key,), figures in found.items()]
    if by is By.DEVICE:
        return sorted(groups, key=lambda group: _natural(group.label))
    return sorted(groups, key=lambda group: (-group.figures.gpu_s, -group.figures.cpu_s, group.key))


def _natural(label: str) -> tuple[str, int, str]:
    """Return a sort key that puts ``nodeA:10`` after ``nodeA:9``."""
    host, _, index = label.rpartition(":")
    return (host, int(index), "") if index.isdecimal() else (host, -1, label)


def stretch(connection: sa.Connection, *, since: datetime, until: datetime, user: str | None) -> Stretch | None:
    """Return the stretch of the runs that ended from *since* to *until* (exclusive), None without any to compare.

    That is by how much runs took longer beside others on their devices than alone. Compared are runs that ended well,
    of the same user, command and device model, where both are known. Whether others were on a device is known from the
    samples (``run_devices.shared``): one sample is enough, so a run that shared its device for a moment counts in full,
    and the real stretch is larger than what is found.
    """
    rows = connection.execute(_shared_and_alone(_runs_with_sharing(since, until), user)).all()
    alone_s = sum(row.shared * row.alone_s / row.alone for row in rows)
    if not alone_s:
        return None
    return Stretch(
        factor=sum(row.shared_s for row in rows) / alone_s,
        commands=len(rows),
        shared_runs=sum(row.shared for row in rows),
        alone_runs=sum(row.alone for row in rows),
    )


def _runs_with_sharing(since: datetime, until: datetime) -> sa.Subquery:
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


def _shared_and_alone(each: sa.Subquery, user: str | None) -> sa.Select[tuple[int, float, int, float]]:
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


class _seconds(FunctionElement[float]):  # noqa: N801 - in SQL it is a function
    """A time in seconds since 1970. In SQLite it is exact to a tenth of a millisecond."""

    type = sa.Double()
    inherit_cache = True


@compiles(_seconds, "sqlite")
def _in_sqlite(element: Any, compiler: Any, **given: Any) -> str:
    return f"((julianday({compiler.process(element.clauses, **given)}) - 2440587.5) * 86400.0)"


@compiles(_seconds, "postgresql")
def _in_postgresql(element: Any, compiler: Any, **given: Any) -> str:
    return f"CAST(EXTRACT(EPOCH FROM {compiler.process(element.clauses, **given)}) AS DOUBLE PRECISION)"


def grouped(
    connection: sa.Connection, steps: Steps, names: Sequence[str], user: str | None, *, total: bool = False
) -> dict[Key, Figures]:
    """Return the figures of each group; *names* are the key columns: user, host, device, step.

    The empty key has the total, if *total* is true or *names* is empty.
    """
    found: dict[Key, dict[str, Any]] = defaultdict(dict)
    groupings = [names, ()] if total and names else [names]
    for key, row in _summed(connection, _held(steps, names, user), groupings, _sums):
        found[key].update(row)
    for key, row in _parts(connection, steps, names, user, total=len(groupings) > 1):
        found[key].update(row)
    for key, row in _waits(connection, _waited(steps, names, user), groupings):
        found[key].update(row)
    known = Figures.__dataclass_fields__
    return {
        key: replace(Figures(), **{name: value for name, value in row.items() if name in known and value is not None})
        for key, row in found.items()
        if row.get("runs")
    }


def _summed(
    connection: sa.Connection, rows: sa.CTE, groupings: Sequence[Sequence[str]], sums: Sums
) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    """Yield the sums of each group of *rows*, in each grouping, with one statement.

    A run on two devices has two rows. It counts once for each device if devices are a key, and once otherwise.
    """
    arms = []
    for number, names in enumerate(groupings):
        key = [rows.c[f"key_{name}"] for name in names]
        padding = [sa.null().label(f"key_{name}") for name in groupings[0][len(names) :]]
        counts, there = rows.c.once, []
        if "device" in names:
            counts, there = sa.literal_column("1"), [rows.c.key_device.is_not(None)]
        columns = sa.literal_column(str(number)).label("grouping_number"), *key, *padding, *sums(rows, counts)
        arms.append(sa.select(*columns).where(*there).group_by(*key))
    for row in connection.execute(sa.union_all(*arms) if len(arms) > 1 else arms[0]).mappings():
        yield tuple(row[f"key_{name}"] for name in groupings[row["grouping_number"]]), dict(row)


def _reach(
    steps: Steps, names: Sequence[str], user: str | None, *, of_job: bool
) -> tuple[sa.FromClause, Any, list[sa.ColumnElement[bool]]]:
    """Join each run with each step that it overlaps. Return the source, the step, and the conditions.

    Jobs are joined only if needed, because their rows are large.
    """
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
    source: sa.FromClause = runs.join(
        step, (runs.c.claimed_at < step.c.step_end) & sa.or_(runs.c.ended_at.is_(None), in_step)
    )
    conditions = [sa.or_(runs.c.ended_at >= since, runs.c.ended_at.is_(None)), runs.c.claimed_at < until]
    if of_job or "user" in names or user is not None:
        source = source.join(jobs, jobs.c.id == runs.c.job_id)
    if user is not None:
        conditions.append(jobs.c.user_name == user)
    return source, step.c, conditions


def _with_devices(source: sa.FromClause) -> sa.FromClause:
    """Return *source* joined with the devices of each run. Runs without devices are kept."""
    same = (run_devices.c.job_id == runs.c.job_id) & (run_devices.c.attempt == runs.c.attempt)
    return source.outerjoin(run_devices, same)


def _key(step: Any, names: Sequence[str]) -> list[sa.ColumnElement[Any]]:
    columns = {
        "user": jobs.c.user_name,
        "host": runs.c.host,
        "device": run_devices.c.device_uuid,
        "step": step.step,
    }
    return [columns[name].label(f"key_{name}") for name in names]


def _once() -> sa.ColumnElement[int]:
    """Return 1 for one row of each run, and 0 for the rows of its other devices."""
    return sa.case((sa.func.coalesce(run_devices.c.device_index, 0) == 0, 1), else_=0)


def _within(begin: Any, end: Any) -> tuple[sa.ColumnElement[float], sa.ColumnElement[float]]:
    """Return when a run began and ended between *begin* and *end*, in seconds since 1970."""
    start_s = sa.case((runs.c.claimed_at < begin, _seconds(begin)), else_=_seconds(runs.c.claimed_at))
    over = sa.or_(runs.c.ended_at.is_(None), runs.c.ended_at > end)
    end_s = sa.case((over, _seconds(end)), else_=_seconds(runs.c.ended_at))
    # Its shim measured how long it ran, without the time in which its host was suspended. A clock goes on meanwhile.
    ran_until_s = _seconds(runs.c.started_at) + runs.c.duration_s
    return start_s, sa.case((ran_until_s < end_s, ran_until_s), else_=end_s)


def _weight() -> sa.ColumnElement[float]:
    """Return by what a run shares the time of a device. A run without memory counts as one byte."""
    return sa.cast(run_devices.c.lease_bytes, sa.Double) + 1.0


class _Sweep:
    """A sweep through the runs of one device. ``integral`` is that of 1 / level so far."""

    def __init__(self, bounds: Sequence[float], add: Callable[[Key, int, int, float], None]) -> None:
        self._bounds, self._add = bounds, add
        self._step = 0
        self._at_s = bounds[0]
        self._level = self._integral = 0.0
        #: The runs that go on: end, number, weight, integral when they or the step began, key, 1 for a CPU.
        self._live: list[tuple[float, int, float, float, Key, int]] = []

    def begin(self, number: int, begin_s: float, end_s: float, weight: float, key: Key, on_cpu: int) -> None:
        """Add a run. Runs come in the order of their begins, each with another number."""
        self.go_on(max(begin_s, self._bounds[0]))
        end_s = min(end_s, self._bounds[-1])
        heapq.heappush(self._live, (end_s, number, weight, self._integral, key, on_cpu))
        self._level += weight

    def go_on(self, until_s: float) -> None:
        """Go on to *until_s*: runs that end get their part, and at the end of a step the others theirs so far."""
        while True:
            end_s = self._live[0][0] if self._live else math.inf
            bound_s = self._bounds[self._step + 1] if self._step + 1 < len(self._bounds) else math.inf
            next_s = min(end_s, bound_s)
            to_s = min(next_s, until_s)
            if self._live:
                self._integral += (to_s - self._at_s) / self._level
            self._at_s = to_s
            if next_s > until_s:
                return
            if end_s <= bound_s:
                _, _, weight, since, key, on_cpu = heapq.heappop(self._live)
                self._level = self._level - weight if self._live else 0.0
                self._add(key, self._step, on_cpu, weight * (self._integral - since))
                continue
            for at, (run_end_s, number, weight, since, key, on_cpu) in enumerate(self._live):
                self._add(key, self._step, on_cpu, weight * (self._integral - since))
                self._live[at] = (run_end_s, number, weight, self._integral, key, on_cpu)
            self._step += 1


def _parts(
    connection: sa.Connection, steps: Steps, names: Sequence[str], user: str | None, *, total: bool
) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    """Yield the time of devices of each group, by one sweep through the runs in the order of their begins.

    SQLite would join the steps with the runs for it, and sort all of that twice.
    """
    found: dict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    position = names.index("step") if "step" in names else None

    def add(key: Key, step: int, on_cpu: int, part_s: float) -> None:
        if user is not None:
            if key[-1] != user:
                return
            key = key[:-1]
        group = key if position is None else (*key[:position], step, *key[position + 1 :])
        found[group][on_cpu] += part_s
        if total:
            found[()][on_cpu] += part_s

    bounds = [start.timestamp() for start, _ in steps] + [steps[-1][1].timestamp()]
    devices: dict[str, _Sweep] = defaultdict(lambda: _Sweep(bounds, add))
    rows = connection.execute(_spans(steps, names, user), execution_options={"yield_per": _AT_A_TIME})
    for number, (device, begin_s, end_s, weight, on_cpu, *key) in enumerate(rows):
        devices[device].begin(number, begin_s, end_s, weight, tuple(key), on_cpu)
    for sweep in devices.values():
        sweep.go_on(bounds[-1])
    yield from ((key, {"gpu_s": gpu_s, "cpu_s": cpu_s}) for key, (gpu_s, cpu_s) in found.items())


def _spans(steps: Steps, names: Sequence[str], user: str | None) -> sa.Select[Any]:
    """Return each run on each device in the period: when, its weight, and its key, with the user behind if *user*."""
    since, until = steps[0][0], steps[-1][1]
    begin_s, end_s = _within(sa.literal(since, UtcDateTime), sa.literal(until, UtcDateTime))
    columns: dict[str, sa.ColumnElement[Any]] = {
        "user": jobs.c.user_name,
        "host": runs.c.host,
        "device": run_devices.c.device_uuid,
        "step": sa.literal_column("0"),
    }
    source = _with_devices(runs.join(jobs, jobs.c.id == runs.c.job_id) if user or "user" in names else runs)
    return (
        sa.select(
            run_devices.c.device_uuid,
            begin_s,
            end_s,
            _weight(),
            # A device of unknown kind counts as a GPU: its run was lost before it started.
            sa.case((run_devices.c.kind.in_(WITHOUT_INDEX), 1), else_=0),
            *(columns[name] for name in names),
            *([] if user is None else [jobs.c.user_name.label("whose")]),
        )
        .select_from(source)
        .where(
            run_devices.c.device_uuid.is_not(None),
            sa.or_(runs.c.ended_at >= since, runs.c.ended_at.is_(None)),
            runs.c.claimed_at < until,
            end_s > begin_s,
        )
        .order_by(runs.c.claimed_at)
    )


def _held(steps: Steps, names: Sequence[str], user: str | None) -> sa.CTE:
    """Return for each run and device the time held in the step, the ending if it is in the step, and measurements."""
    source, step, conditions = _reach(steps, names, user, of_job=False)
    start_s, end_s = _within(step.step_start, step.step_end)
    took = end_s - start_s
    # The store's clock may have been set back: a negative time counts as 0.
    is_held = run_devices.c.device_uuid.is_not(None) & (took > 0)
    here = (runs.c.ended_at >= step.step_start) & (runs.c.ended_at < step.step_end)
    # A run that reached its time limit succeeded if its job did: it was a probe.
    its_job = jobs.alias("its_job")
    was_probe = sa.exists().where(
        its_job.c.id == runs.c.job_id,
        its_job.c.attempt == runs.c.attempt,
        its_job.c.state == JobState.SUCCEEDED.value,
    )
    well = sa.or_(
        (runs.c.ending == EndingKind.EXITED.value) & (runs.c.exit_code == 0),
        (runs.c.ending == EndingKind.TIMED_OUT.value) & was_probe,
    )
    later = runs.alias("later")
    ran_again = sa.exists().where(later.c.job_id == runs.c.job_id, later.c.attempt == runs.c.attempt + 1)
    full = here & (runs.c.ending == EndingKind.OUT_OF_MEMORY.value)
    return (
        sa.select(
            *_key(step, names),
            _once().label("once"),
            runs.c.job_id,
            sa.case((here & well, _WELL), (here, runs.c.ending)).label("ended_as"),
            sa.case((full, sa.case((ran_again, 1), else_=0)), else_=0).label("repaired"),
            sa.case((is_held, took), else_=0.0).label("held_s"),
            run_devices.c.lease_bytes,
            run_devices.c.peak_bytes,
            run_devices.c.utilisation_mean,
        )
        .select_from(_with_devices(source))
        .where(*conditions)
        .cte("held")
    )


def _sums(rows: sa.CTE, counts: sa.ColumnElement[int]) -> list[sa.ColumnElement[Any]]:
    """Return the columns that count runs and endings, and that sum time on devices and values weighted by it."""
    held, lease, peak, busy = rows.c.held_s, rows.c.lease_bytes, rows.c.peak_bytes, rows.c.utilisation_mean
    ways = (_WELL, *(kind.value for kind in _KINDS))

    def time(condition: sa.ColumnElement[bool], weighed: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return sa.func.sum(sa.case((condition, weighed), else_=0.0))

    return [
        sa.func.count(rows.c.job_id.distinct()).label("jobs"),
        sa.func.sum(counts).label("runs"),
        sa.func.sum(sa.case((rows.c.ended_as.is_not(None), counts), else_=0)).label("ended"),
        *(sa.func.sum(sa.case((rows.c.ended_as == way, counts), else_=0)).label(way) for way in ways),
        sa.func.sum(rows.c.repaired * counts).label("repaired"),
        sa.func.sum(held).label("held_s"),
        sa.func.sum(held * lease).label("asked_byte_s"),
        time(peak.is_not(None), held * lease).label("measured_byte_s"),
        time(peak.is_not(None), held * peak).label("peak_byte_s"),
        time(peak.is_not(None), held).label("measured_s"),
        (time(busy.is_not(None), held * busy) / sa.func.nullif(time(busy.is_not(None), held), 0.0)).label(
            "utilisation"
        ),
    ]


def _waited(steps: Steps, names: Sequence[str], user: str | None) -> sa.CTE:
    """Return the waits of the jobs that were first claimed within the step."""
    source, step, conditions = _reach(steps, names, user, of_job=True)
    took = _seconds(runs.c.claimed_at) - _seconds(jobs.c.submitted_at)
    on_devices = "device" in names
    return (
        sa.select(
            *_key(step, names),
            (_once() if on_devices else sa.literal_column("1")).label("once"),
            sa.case((took > 0, took), else_=0.0).label("wait_s"),
        )
        .select_from(_with_devices(source) if on_devices else source)
        .where(*conditions, runs.c.attempt == 1, runs.c.claimed_at >= step.step_start)
        .cte("waited")
    )


def _waits(
    connection: sa.Connection, rows: sa.CTE, groupings: Sequence[Sequence[str]]
) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    """Yield the waits of each group. Percentiles are nearest ranks, so each is a wait that occurred."""
    if connection.dialect.name == "postgresql":
        yield from _summed(connection, rows, groupings, _percentiles)
        return
    # SQLite has no percentiles, and its window functions would sort the waits three times.
    waits: dict[Key, array[float]] = defaultdict(lambda: array("d"))
    for *key, once, wait_s in connection.execute(sa.select(*rows.c), execution_options={"yield_per": _AT_A_TIME}):
        if key and None not in key:
            waits[tuple(key)].append(wait_s)
        if once and () in groupings:
            waits[()].append(wait_s)
    yield from ((key, _ranked(each)) for key, each in waits.items())


def _percentiles(rows: sa.CTE, counts: sa.ColumnElement[int]) -> list[sa.ColumnElement[Any]]:
    wait = sa.case((counts == 1, rows.c.wait_s))  # percentiles ignore NULL
    return [
        sa.func.count(wait).label("waits"),
        sa.func.percentile_disc(_MEDIAN).within_group(wait).label("wait_median_s"),
        sa.func.percentile_disc(_MOST).within_group(wait).label("wait_p95_s"),
        sa.func.max(wait).label("wait_max_s"),
    ]


def _ranked(waits: Iterable[float]) -> dict[str, Any]:
    ordered = sorted(waits)

    def at(share: float) -> float:
        return ordered[max(1, math.ceil(share * len(ordered))) - 1]

    return {
        "waits": len(ordered),
        "wait_median_s": at(_MEDIAN),
        "wait_p95_s": at(_MOST),
        "wait_max_s": ordered[-1],
    }
