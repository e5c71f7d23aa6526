"""Statistics in SQL match the definitions in :class:`Figures`, computed here run by run."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from factories import make_spec
from outbox import Outbox

from gpuqueue.codec.wire import to_plain
from gpuqueue.history.connect import writing
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.statistics import local_days
from gpuqueue.history.tables import jobs, run_devices, runs
from gpuqueue.model.statistics import By, Figures, Size

NOON = datetime(2026, 11, 3, 12, tzinfo=timezone.utc)
GIB = 2**30
SINCE, UNTIL = 24, 96
WAYS = ("succeeded", "cancelled", "out_of_memory", "timed_out", "lost")


def at(hours: float) -> datetime:
    return NOON + timedelta(hours=hours)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A run as it is stored, with the required fields of its job."""

    job: int
    attempt: int
    user: str
    host: str
    submitted: datetime
    claimed: datetime
    ended: datetime | None
    ending: str | None
    code: int | None
    devices: tuple[dict[str, Any], ...]
    ran_again: bool

    @property
    def way(self) -> str | None:
        """Return the category that counts this run's ending."""
        return "succeeded" if (self.ending, self.code) == ("exited", 0) else self.ending


def made(seed: int) -> list[Delivery]:
    """Return the runs of sixty jobs, at full quarters of hours, as the days of all zones begin.

    Some jobs run more than once, on two devices or on none, and some runs have not ended.
    """
    chance = random.Random(seed)  # noqa: S311 - the same runs each time
    reported = []
    for job in range(1, 61):
        user, submitted = chance.choice(("ada", "bob", "eve")), chance.randrange(480) / 4
        claimed = submitted + chance.randrange(-4, 24) / 4  # negative if the clock was set back
        attempts = chance.choice((1, 1, 1, 2, 3))
        for attempt in range(1, attempts + 1):
            host = chance.choice("AB")
            ended = None if chance.random() < 0.1 else claimed + chance.randrange(120) / 4
            ending = chance.choice(("exited", "exited", "cancelled", "out_of_memory", "timed_out", "lost", "preempted"))
            uuids = chance.sample((f"GPU-{host}0", f"GPU-{host}1", f"cpu-{host}"), chance.choice((0, 1, 1, 1, 2)))
            devices = tuple(
                {
                    "device_uuid": uuid,
                    "device_index": position,
                    "host_index": 0,
                    "kind": chance.choice((None, "gpu")) if uuid.startswith("GPU") else "cpu",
                    "lease_bytes": chance.randrange(1, 9) * GIB,
                    "total_bytes": chance.choice((None, 8 * GIB)),
                    "peak_bytes": peak,
                    "peak_source": "none" if peak is None else "torch",
                    "utilisation_mean": chance.choice((None, 0.25, 1.0)),
                }
                for position, uuid in enumerate(uuids)
                for peak in [chance.choice((None, GIB, 3 * GIB))]
            )
            reported.append(
                Delivery(
                    job=job,
                    attempt=attempt,
                    user=user,
                    host=host,
                    submitted=at(submitted),
                    claimed=at(claimed),
                    ended=None if ended is None else at(ended),
                    ending=None if ended is None else ending,
                    code=None if ended is None or ending != "exited" else chance.choice((0, 0, 1)),
                    devices=devices,
                    ran_again=attempt < attempts,
                )
            )
            claimed = (ended if ended is not None else claimed) + 1
    return reported


def write(database: HistoryDatabase, reported: Sequence[Delivery]) -> None:
    """Write the runs directly into the tables."""
    outbox = Outbox(database)
    for job in sorted({run.job for run in reported}):
        outbox.submit(job, make_spec())
    outbox.record()
    with writing(database._engine) as connection:
        for run in reported:
            its_job = jobs.update().where(jobs.c.id == run.job)
            connection.execute(its_job.values(user_name=run.user, submitted_at=run.submitted))
            key = {"job_id": run.job, "attempt": run.attempt}
            row = {"host": run.host, "claimed_at": run.claimed, "ended_at": run.ended, "ending": run.ending}
            connection.execute(
                runs.insert().values(**key, **row, exit_code=run.code, token=f"{run.job}.{run.attempt}", worker="w")
            )
            for device in run.devices:
                connection.execute(run_devices.insert().values(**key, **device, samples=1, na_samples=0))


def size(run: Delivery) -> str:
    """Return the size of a run, by its device."""
    first = run.devices[0] if run.devices else {"kind": None, "total_bytes": None, "lease_bytes": 0}
    if len(run.devices) < 2 and "cpu" == first["kind"]:
        return "cpu"
    if len(run.devices) < 2 and first["total_bytes"] is None:
        return "unknown"
    return str(Size.of(first["lease_bytes"], first["total_bytes"] or 1, len(run.devices)))


def parts(everyone: Sequence[Delivery]) -> Callable[[Delivery, dict[str, Any], datetime, datetime], float]:
    """Return how much of a device's time a run has: in each moment its share of the memory of all runs there."""
    spans: dict[str, list[tuple[datetime, datetime, int]]] = {}
    for run in everyone:
        for device in run.devices:
            last = at(UNTIL) if run.ended is None else run.ended
            spans.setdefault(device["device_uuid"], []).append((run.claimed, last, device["lease_bytes"]))

    def part_s(run: Delivery, device: dict[str, Any], start: datetime, end: datetime) -> float:
        first, last = max(run.claimed, start), min(run.ended or end, end)
        there = spans[device["device_uuid"]]
        moments = sorted(
            {first, last, *(each for begin, over, _ in there for each in (begin, over) if first < each < last)}
        )
        return sum(
            (then - now).total_seconds()
            * device["lease_bytes"]
            / sum(lease for begin, over, lease in there if begin <= now < over)
            for now, then in pairwise(moments)
            if first < last
        )

    return part_s


def expected(
    reported: Sequence[Delivery],
    start: datetime,
    end: datetime,
    on: str | None = None,
    *,
    among: Sequence[Delivery] | None = None,
) -> Figures:
    """Return the figures of *reported* from *start* to *end*, on the device *on* or on all devices.

    *among* are the runs of all users, which share the devices. None: these are all.
    """
    part_s = parts(reported if among is None else among)
    here = [
        run
        for run in reported
        if run.claimed < end and (run.ended is None or run.ended > start or run.claimed >= start)
    ]
    done = [run for run in here if run.ended is not None and start <= run.ended < end]
    ended = [run.way for run in done]
    held = [
        (max(0.0, (min(run.ended or end, end) - max(run.claimed, start)).total_seconds()), device)
        for run in here
        for device in run.devices
        if on in (None, device["device_uuid"])
    ]
    shared = [
        (part_s(run, device, start, end), device)
        for run in here
        for device in run.devices
        if on in (None, device["device_uuid"])
    ]
    measured = [(s, device) for s, device in held if device["peak_bytes"] is not None]
    seen = [(s, device["utilisation_mean"]) for s, device in held if device["utilisation_mean"] is not None]
    first = (run for run in here if run.attempt == 1 and run.claimed >= start)
    waits = sorted(max(0.0, (run.claimed - run.submitted).total_seconds()) for run in first)
    return Figures(
        jobs=len({run.job for run in here}),
        runs=len(here),
        gpu_s=sum(s for s, device in shared if device["kind"] != "cpu"),
        cpu_s=sum(s for s, device in shared if device["kind"] == "cpu"),
        held_s=sum(s for s, _ in held),
        asked_byte_s=sum(s * device["lease_bytes"] for s, device in held),
        measured_byte_s=sum(s * device["lease_bytes"] for s, device in measured),
        peak_byte_s=sum(s * device["peak_bytes"] for s, device in measured),
        measured_s=sum(s for s, _ in measured),
        utilisation=sum(s * busy for s, busy in seen) / sum(s for s, _ in seen) if any(s for s, _ in seen) else None,
        waits=len(waits),
        wait_mean_s=sum(waits) / len(waits) if waits else None,
        wait_median_s=waits[math.ceil(0.5 * len(waits)) - 1] if waits else None,
        wait_p95_s=waits[math.ceil(0.95 * len(waits)) - 1] if waits else None,
        wait_max_s=waits[-1] if waits else None,
        ended=len(ended),
        repaired=sum(run.way == "out_of_memory" and run.ran_again for run in done),
        **{way: ended.count(way) for way in WAYS},
    )


def same(figures: Figures, other: Figures) -> bool:
    """Return whether both figures are equal within SQLite's time precision of a tenth of a millisecond."""
    return all(
        (value is None) == (one is None) and (one is None or one == pytest.approx(value, rel=1e-6, abs=1e-3))
        for one, value in zip(to_plain(figures).values(), to_plain(other).values(), strict=True)
    )


@pytest.fixture
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


#: Zones: that of the store, one with a part of an hour, and one in which a day of the period has 25 hours.
UTC, NEPAL, SHIFTED = "UTC0", "<+0545>-5:45", "CET-1CEST,M3.5.0,J309/3"


@pytest.mark.parametrize(
    ("seed", "user", "zone"),
    [
        (1, None, UTC),
        (2, "ada", UTC),
        (3, None, NEPAL),
        (4, "bob", NEPAL),
        (5, None, SHIFTED),
        (6, "eve", SHIFTED),
    ],
    indirect=["zone"],
)
@pytest.mark.usefixtures("zone")
def test_groups_by_user_host_device_size_and_day_and_the_totals_match_the_runs(
    database: HistoryDatabase, seed: int, user: str | None
) -> None:
    # Some runs exceed the period, and many times are at midnight, where an off-by-one error would show.
    reported = made(seed)
    write(database, reported)
    start, end = at(SINCE), at(UNTIL)
    within = [run for run in reported if (run.ended is None or run.ended >= start) and run.claimed < end]
    mine = [run for run in within if user in (None, run.user)]
    keys: dict[By, Callable[[Delivery], set[str]]] = {
        By.USER: lambda run: {run.user},
        By.HOST: lambda run: {run.host},
        By.DEVICE: lambda run: {device["device_uuid"] for device in run.devices},
        By.SIZE: lambda run: {size(run)},
    }
    for by, key in keys.items():
        found = database.statistics(by=by, since=start, until=end, user=user)
        groups = {group.key: group.figures for group in found.groups}

        assert same(expected(mine, start, end, among=within), found.total)
        assert {name for run in mine for name in key(run)} >= set(groups)
        for name in {name for run in mine for name in key(run)}:
            runs_there = [run for run in mine if name in key(run)]
            there = expected(runs_there, start, end, name if by is By.DEVICE else None, among=within)
            assert same(there, groups.get(name, Figures())), (by, name)

    days = database.statistics(by=By.DAY, since=start, until=end, user=user)
    assert same(expected(mine, start, end, among=within), days.total)
    for (day, night), group in zip(local_days(start, end), days.groups, strict=True):
        assert same(expected(mine, day, night, among=within), group.figures), group.key


def test_each_step_of_a_course_matches_the_runs_in_total_and_by_device(database: HistoryDatabase) -> None:
    reported = made(4)
    write(database, reported)
    within = [run for run in reported if (run.ended is None or run.ended >= at(SINCE)) and run.claimed < at(UNTIL)]
    course = database.course(since=at(SINCE), until=at(UNTIL), count=6)
    bounds = list(zip(course.bounds, course.bounds[1:], strict=False))

    for (start, end), step in zip(bounds, course.steps, strict=True):
        assert same(expected(within, start, end), step)
    busy_s = sum(step.gpu_s + step.cpu_s for _, steps in course.devices for step in steps)
    whole = expected(within, at(SINCE), at(UNTIL))
    assert whole.gpu_s + whole.cpu_s == pytest.approx(busy_s)
    for label, steps in course.devices:
        for (start, end), step in zip(bounds, steps, strict=True):
            assert step.gpu_s + step.cpu_s <= (end - start).total_seconds() + 1e-3, label
