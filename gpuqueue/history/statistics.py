"""Statistics of the runs in a period: time on devices, requested and used memory, waits, endings."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from gpuqueue.history.device_names import device_labels
from gpuqueue.history.stretch import stretch
from gpuqueue.history.sums import Key, Steps, grouped
from gpuqueue.model.statistics import By, Course, Figures, Group, Statistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa


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
    return Statistics(by=by, since=since, until=until, groups=tuple(groups), total=total, stretch=longer)


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
