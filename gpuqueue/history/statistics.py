"""Statistics of the runs in a period, in SQL: time on devices, requested and used memory, waits, endings, stretch.

One statement reads the runs of the period once, in the order of their claims, each with its devices. Everything else
is added up here: for the whole period, or for each of its steps, such as days. SQLite would sort and join all runs for
each kind of sum, which takes twice as long.

The time of a device is shared by its runs: at each moment by their allocated memory. With ``level`` as the memory of
all runs on the device, a run of ``weight`` has the integral of weight / level. So one sweep over the moments at which
runs begin and end gives the integral of 1 / level, and a run has its difference between its end and its begin.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from gpuqueue.history.filters import WITHOUT_INDEX, device_labels
from gpuqueue.history.tables import jobs, run_devices, runs
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind
from gpuqueue.model.statistics import LARGE_PART, WHOLE_PART, By, Course, Figures, Group, Size, Statistics, Stretch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The values of a group's key columns.
Key = tuple[Any, ...]
Steps = list[tuple[datetime, datetime]]
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
    days = local_days(since, until)
    reading = _Reading(days, ("step",), user) if by is By.DAY else _Reading([(since, until)], (by.value,), user)
    figures = reading.of(connection)
    total = figures.pop((), Figures())
    groups = _days(days, figures) if by is By.DAY else _groups(connection, by, figures)
    longer = stretch(connection, since=since, until=until, user=user) if reading.any_shared else None
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
    figures = _Reading(steps, ("device", "step"), user).of(connection)
    uuids = {key[0] for key in figures if len(key) > 1}
    labels = device_labels(connection, uuids)
    return Course(
        bounds=tuple(bounds),
        steps=tuple(figures.get((number,), Figures()) for number in range(count)),
        devices=tuple(
            (labels[uuid], tuple(figures.get((uuid, number), Figures()) for number in range(count)))
            for uuid in sorted(labels, key=lambda uuid: _natural(labels[uuid]))
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


def _days(days: Steps, figures: Mapping[Key, Figures]) -> list[Group]:
    dates = [start.astimezone().date().isoformat() for start, _ in days]
    return [Group(key=date, label=date, figures=figures.get((number,), Figures())) for number, date in enumerate(dates)]


def _groups(connection: sa.Connection, by: By, found: Mapping[Key, Figures]) -> list[Group]:
    labels = device_labels(connection, {key for (key,) in found}) if by is By.DEVICE else {}
    groups = [Group(key=key, label=labels.get(key) or key, figures=figures) for (key,), figures in found.items()]
    if by is By.SIZE:
        order = [*map(str, Size)]
        return sorted(groups, key=lambda group: order.index(group.key) if group.key in order else len(order))
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
    """A time in seconds since 1970. In SQLite it is exact to a millisecond: to read more takes three times as long.

    So a run that ended within a millisecond of a bound that is no whole second may count on its other side.
    """

    type = sa.Double()
    inherit_cache = True


@compiles(_seconds, "sqlite")
def _in_sqlite(element: Any, compiler: Any, **given: Any) -> str:
    text = compiler.process(element.clauses, **given)
    return f"(round((julianday({text}) - 2440587.5) * 86400000.0) / 1000.0)"


@compiles(_seconds, "postgresql")
def _in_postgresql(element: Any, compiler: Any, **given: Any) -> str:
    return f"CAST(EXTRACT(EPOCH FROM {compiler.process(element.clauses, **given)}) AS DOUBLE PRECISION)"


#: The sums of a tally over its runs on each device. ``seen_s`` is the time for which the utilisation is known, and
#: ``busy_s`` that time weighted by it.
_TIMES = (
    *("gpu_s", "cpu_s", "held_s", "asked_byte_s", "measured_byte_s", "peak_byte_s", "measured_s"),
    *("seen_s", "busy_s"),
)


class _Tally:
    """The figures of one group so far."""

    __slots__ = (*_TIMES, "jobs", "repaired", "runs", "several", "waits", "ways")

    def __init__(self) -> None:
        self.gpu_s = self.cpu_s = self.held_s = self.asked_byte_s = self.measured_byte_s = self.peak_byte_s = 0.0
        self.measured_s = self.seen_s = self.busy_s = 0.0
        self.jobs = self.runs = self.repaired = 0
        self.waits = array("d")
        self.ways: dict[str, int] = {}
        #: Those of its jobs that have several runs in the period.
        self.several: set[int] = set()

    def count(self, job_id: int, way: str | None, repaired: int, wait_s: float | None, *, several: bool) -> None:
        """Count a run: how it ended in the step, and how long its job had waited if it was first claimed there."""
        self.runs += 1
        if several:
            self.several.add(job_id)
        else:
            self.jobs += 1
        if way is not None:
            self.ways[way] = self.ways.get(way, 0) + 1
            self.repaired += repaired
        if wait_s is not None:
            self.waits.append(wait_s)

    def hold(self, held_s: float, lease: int, peak: int | None, busy: float | None) -> None:
        """Add the time of a run on one device."""
        asked_byte_s = held_s * lease
        self.held_s += held_s
        self.asked_byte_s += asked_byte_s
        if peak is not None:
            self.measured_byte_s += asked_byte_s
            self.peak_byte_s += held_s * peak
            self.measured_s += held_s
        if busy is not None:
            self.seen_s += held_s
            self.busy_s += held_s * busy

    def figures(self) -> Figures:
        """Return the figures."""
        return Figures(
            **{name: getattr(self, name) for name in (*_TIMES[:-2], "runs", "repaired")},
            jobs=self.jobs + len(self.several),
            utilisation=self.busy_s / self.seen_s if self.seen_s else None,
            ended=sum(self.ways.values()),
            **{way: self.ways.get(way, 0) for way in (_WELL, *(kind.value for kind in _KINDS))},
            **(_ranked(self.waits) if self.waits else {}),
        )


class _Reading:
    """One reading of the runs of a period into the tallies of its groups.

    *names* are the key columns: user, host, device, size, step, which is the last. The rest of a key without its
    first value has the total over that: of all steps or all users, of all devices in a step. A run on two devices has
    two rows. It counts once for each device if devices are a key, and once otherwise.
    """

    def __init__(self, steps: Steps, names: Sequence[str], user: str | None) -> None:
        self._steps, self._user = steps, user
        self._bounds = [start.timestamp() for start, _ in steps] + [steps[-1][1].timestamp()]
        self._names = [name for name in names if name != "step"]
        self._by_step, self._by_device = "step" in names, "device" in names
        self._tallies: dict[Key, _Tally] = defaultdict(_Tally)
        self._several: set[int] = set()
        #: Whether one of the runs shared a device.
        self.any_shared = False

    def of(self, connection: sa.Connection) -> dict[Key, Figures]:
        """Return the figures of each group."""
        since, until = self._steps[0][0], self._steps[-1][1]
        since_s, until_s = self._bounds[0], self._bounds[-1]
        reach = sa.or_(runs.c.ended_at >= since, runs.c.ended_at.is_(None)), runs.c.claimed_at < until
        self._several.update(connection.scalars(sa.select(runs.c.job_id).where(*reach, runs.c.attempt > 1)))
        sweeps: dict[str, _Sweep] = defaultdict(lambda: _Sweep(self._bounds, self._add_part))
        rows = connection.execute(_on_devices(self._names).where(*reach), execution_options={"yield_per": _AT_A_TIME})
        for number, row in enumerate(rows):
            user, device, lease, on_cpu, claimed_s, ended_s, ran_until_s, shared, *_ = row
            mine, key = self._user is None or user == self._user, row[_KEY_AT:]
            last_s = until_s if ended_s is None or ended_s > until_s else ended_s
            if ran_until_s is not None and ran_until_s < last_s:
                last_s = ran_until_s
            if device is not None and last_s > claimed_s and last_s > since_s:
                # The runs of other users take their part of the devices.
                sweeps[device].begin(number, claimed_s, last_s, lease + 1.0, key if mine else None, on_cpu)
            if mine:
                self.any_shared = self.any_shared or bool(shared)
                self._count(row, key, last_s)
        for sweep in sweeps.values():
            sweep.go_on(until_s)
        self._add_times_of_groups()
        return {key: tally.figures() for key, tally in self._tallies.items() if tally.runs and None not in key}

    def _count(self, row: Sequence[Any], key: Key, last_s: float) -> None:
        """Count a run on one of its devices in each step that it overlaps. It held the device until *last_s*."""
        _, _, lease, _, claimed_s, ended_s, _, _, job_id, is_first, submitted_s, way, repaired, peak, busy, *_ = row
        bounds, several = self._bounds, job_id in self._several
        # The store's clock may have been set back: a negative time counts as 0.
        wait_s = None if submitted_s is None else max(0.0, claimed_s - submitted_s)
        step = first = max(0, bisect_right(bounds, claimed_s) - 1)
        while step < len(bounds) - 1 and (ended_s is None or ended_s > bounds[step] or claimed_s >= bounds[step]):
            start_s, end_s = bounds[step], bounds[step + 1]
            began = claimed_s >= start_s
            group = (*key, step) if self._by_step else key
            tally, total = self._tallies[group], self._tallies[group[1:]]
            if is_first or self._by_device:
                ended_as = way if ended_s is not None and start_s <= ended_s < end_s else None
                first_wait_s = wait_s if began else None
                tally.count(job_id, ended_as, repaired, first_wait_s, several=several)
                if is_first and self._names:
                    total.count(job_id, ended_as, repaired, first_wait_s, several=several)
            held_s = min(last_s, end_s) - (claimed_s if began else start_s)
            if lease is not None and held_s > 0:
                tally.hold(held_s, lease, peak, busy)
            step += 1
        if is_first and step > first and not self._names:  # in the total of all steps it counts once
            ended_as = way if ended_s is not None and bounds[0] <= ended_s < bounds[-1] else None
            first_wait_s = wait_s if claimed_s >= bounds[0] else None
            self._tallies[()].count(job_id, ended_as, repaired, first_wait_s, several=several)

    def _add_part(self, key: Key | None, step: int, on_cpu: int, part_s: float) -> None:
        """Add the time of a device that a run had; the *key* None is that of another user."""
        if key is None:
            return
        tally = self._tallies[(*key, step) if self._by_step else key]
        if on_cpu:
            tally.cpu_s += part_s
        else:
            tally.gpu_s += part_s

    def _add_times_of_groups(self) -> None:
        """Add the times of groups to their totals: each run on a device is in one group of each total."""
        for key, tally in list(self._tallies.items()):
            if len(key) == len(self._names) + self._by_step:
                total = self._tallies[key[1:]]
                for name in _TIMES:
                    setattr(total, name, getattr(total, name) + getattr(tally, name))


#: The number of the columns of :func:`_on_devices` before those of the key.
_KEY_AT = 15


def _on_devices(names: Sequence[str]) -> sa.Select[Any]:
    """Return each run on each of its devices, in the order of the claims; a run without devices has one row."""
    # A run that reached its time limit succeeded if its job did: it was a probe.
    was_probe = (jobs.c.attempt == runs.c.attempt) & (jobs.c.state == JobState.SUCCEEDED.value)
    well = sa.or_(
        (runs.c.ending == EndingKind.EXITED.value) & (runs.c.exit_code == 0),
        (runs.c.ending == EndingKind.TIMED_OUT.value) & was_probe,
    )
    later = runs.alias("later")
    ran_again = sa.exists().where(later.c.job_id == runs.c.job_id, later.c.attempt == runs.c.attempt + 1)
    keys = {"user": jobs.c.user_name, "host": runs.c.host, "device": run_devices.c.device_uuid, "size": _size()}
    same = (run_devices.c.job_id == runs.c.job_id) & (run_devices.c.attempt == runs.c.attempt)
    return (
        sa.select(
            jobs.c.user_name,
            run_devices.c.device_uuid,
            run_devices.c.lease_bytes,
            # A device of unknown kind counts as a GPU: its run was lost before it started.
            sa.case((run_devices.c.kind.in_(WITHOUT_INDEX), 1), else_=0),
            _seconds(runs.c.claimed_at),
            _seconds(runs.c.ended_at),
            # Its shim measured how long it ran, without the time in which its host was suspended. A clock goes on.
            _seconds(runs.c.started_at) + runs.c.duration_s,
            sa.func.coalesce(run_devices.c.shared, sa.false()),
            runs.c.job_id,
            sa.case((sa.func.coalesce(run_devices.c.device_index, 0) == 0, 1), else_=0),
            # Only the first claim of a job ends a wait.
            sa.case((runs.c.attempt == 1, _seconds(jobs.c.submitted_at))),
            sa.case((well, _WELL), else_=runs.c.ending),
            sa.case((runs.c.ending == EndingKind.OUT_OF_MEMORY.value, sa.case((ran_again, 1), else_=0)), else_=0),
            run_devices.c.peak_bytes,
            run_devices.c.utilisation_mean,
            *(keys[name] for name in names),
        )
        .select_from(runs.join(jobs, jobs.c.id == runs.c.job_id).outerjoin(run_devices, same))
        .order_by(runs.c.claimed_at)
    )


def _size() -> sa.ColumnElement[str]:
    """Return the size of a run, by the rules of :class:`Size`, or what it ran on if that is no GPU."""
    others = run_devices.alias("others")
    several = sa.exists().where(
        others.c.job_id == runs.c.job_id, others.c.attempt == runs.c.attempt, others.c.device_index > 0
    )
    lease, total = sa.cast(run_devices.c.lease_bytes, sa.Double), run_devices.c.total_bytes
    return sa.case(
        (several, Size.SEVERAL.value),
        (run_devices.c.kind.in_(WITHOUT_INDEX), run_devices.c.kind),
        (total.is_(None), "unknown"),
        (lease >= WHOLE_PART * total, Size.WHOLE.value),
        (lease > LARGE_PART * total, Size.LARGE.value),
        else_=Size.SMALL.value,
    )


class _Sweep:
    """A sweep through the runs of one device. ``integral`` is that of 1 / level so far."""

    def __init__(self, bounds: Sequence[float], add: Callable[[Key | None, int, int, float], None]) -> None:
        self._bounds, self._add = bounds, add
        self._step = 0
        self._at_s = bounds[0]
        self._level = self._integral = 0.0
        #: The runs that go on: end, number, weight, integral when they or the step began, key, 1 for a CPU.
        self._live: list[tuple[float, int, float, float, Key | None, int]] = []

    def begin(self, number: int, begin_s: float, end_s: float, weight: float, key: Key | None, on_cpu: int) -> None:
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


def _ranked(waits: Iterable[float]) -> dict[str, Any]:
    ordered = sorted(waits)

    def at(share: float) -> float:
        return ordered[max(1, math.ceil(share * len(ordered))) - 1]

    return {
        "waits": len(ordered),
        "wait_mean_s": sum(ordered) / len(ordered),
        "wait_median_s": at(_MEDIAN),
        "wait_p95_s": at(_MOST),
        "wait_max_s": ordered[-1],
    }
