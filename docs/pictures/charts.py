#!/usr/bin/env python3
"""Draws the charts of the documentation with the real commands, from the made-up month of a small lab.

    .venv/bin/python docs/pictures/charts.py [DIRECTORY]

It fills a history with two weeks of jobs on four cards, the same each time. `gpuqueue stats --plot` draws them:
stats.png. memory.png is what `gpuqueue show --plot` draws of one of the jobs, without the command: that asks the store
as well, and here is none.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import mkdtemp

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from outbox import Outbox  # noqa: E402 - behind the path

from gpuqueue.cli.plots import image_file, job_memory  # noqa: E402 - as above
from gpuqueue.codec.request import encode_ended, encode_spec, encode_started  # noqa: E402 - as above
from gpuqueue.history import migrate  # noqa: E402 - as above
from gpuqueue.history.database import HistoryDatabase  # noqa: E402 - as above
from gpuqueue.model.device import Activity, DeviceKind, Peak, PeakSource, Timeline  # noqa: E402 - as above
from gpuqueue.model.event import Act  # noqa: E402 - as above
from gpuqueue.model.job import JobState  # noqa: E402 - as above
from gpuqueue.model.job_spec import Account, JobSpec  # noqa: E402 - as above
from gpuqueue.model.run import Ending, RunDevice  # noqa: E402 - as above
from gpuqueue.text.units import GIB  # noqa: E402 - as above

BIN = Path(sys.executable).parent
BEGIN = datetime(2026, 11, 2, tzinfo=timezone.utc)
DAYS = 14
HEADROOM, TOTAL = GIB // 2, 24 * GIB
#: Steps in a run's timeline, and the share of the peak that is held in each of the first.
STEPS, GROWTH = 120, (0.05, 0.3, 0.62, 0.8)


@dataclass(frozen=True)
class Person:
    """What somebody's jobs are like: what they ask for, the share of it that they use, how long they take."""

    name: str
    asked_gib: tuple[int, ...]
    used: float
    hours: float
    jobs_a_day: float


PEOPLE = (
    Person("ann", (10, 12), 0.82, 2.5, 8),
    Person("bob", (16, 22), 0.35, 3.0, 4),
    Person("eve", (2, 4), 0.7, 0.6, 14),
    Person("kim", (6, 8), 0.9, 1.5, 5),
)


@dataclass
class Card:
    """A card, and what runs there: (from, until, bytes)."""

    index: int
    runs: list[tuple[datetime, datetime, int]] = field(default_factory=list)

    def free_at(self, moment: datetime) -> int:
        """Return how many bytes nobody has then."""
        return TOTAL - HEADROOM - sum(size for start, end, size in self.runs if start <= moment < end)


def main(target: Path) -> int:
    """Fill a history and draw into *target*."""
    place = Path(mkdtemp(prefix="gpuqueue-charts-"))
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GPUQUEUE_")}
    environ = {**ours, "GPUQUEUE_STATE_DIR": str(place), "TZ": "UTC"}
    url = f"sqlite:///{place / 'history.db'}"
    try:
        migrate.upgrade(url)
        database = HistoryDatabase(url)
        longest = fill(Outbox(database), random.Random(7))  # noqa: S311 - the same each time
        days = ("--since", f"{BEGIN:%Y-%m-%d}", "--until", f"{BEGIN + timedelta(days=DAYS):%Y-%m-%d}")
        command = [str(BIN / "gpuqueue"), "stats", *days, "--plot", str(target / "stats.png")]
        subprocess.run(command, env=environ, check=True, timeout=200)
        draw_memory(database, longest, target / "memory.png")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 0


def draw_memory(database: HistoryDatabase, job_id: int, path: Path) -> None:
    """Draw how the memory of a job went."""
    record = database.get(job_id)
    run = job_memory.drawable(record) if record else None
    if record is None or run is None:
        raise SystemExit(f"job {job_id} has nothing to draw: choose another")
    image_file.write(str(path), job_memory.memory(record, run))


def fill(outbox: Outbox, chance: random.Random) -> int:
    """Report all jobs to the history; return the id of one with an interesting chart."""
    cards = [Card(index) for index in range(4)]
    chosen, most_s = 1, 0.0
    for job_id, (at, person) in enumerate(arrivals(chance), start=1):
        took = timedelta(hours=chance.lognormvariate(0, 0.7) * person.hours)
        asked = chance.choice(person.asked_gib) * GIB
        start, card = place_for(cards, at, asked)
        card.runs.append((start, start + took, asked))
        failed = report(outbox, job_id, (at, start, took), person, (asked, card), chance)
        if person.name == "ann" and not failed and took.total_seconds() > most_s:
            chosen, most_s = job_id, took.total_seconds()
    outbox.record()
    return chosen


def arrivals(chance: random.Random) -> list[tuple[datetime, Person]]:
    """Return who submits when: mostly in the afternoon, little at the weekend."""
    found = []
    for day in range(DAYS):
        busy = 0.25 if (BEGIN + timedelta(days=day)).weekday() >= 5 else 1.0  # noqa: PLR2004 - Saturday
        for person in PEOPLE:
            for _ in range(round(busy * person.jobs_a_day * chance.uniform(0.6, 1.4))):
                hour = min(23.9, max(0.0, chance.gauss(14, 4)))
                found.append((BEGIN + timedelta(days=day, hours=hour), person))
    return sorted(found, key=lambda each: each[0])


def place_for(cards: list[Card], at: datetime, asked: int) -> tuple[datetime, Card]:
    """Return when and where a job begins: on the card with the most room, as soon as one has enough."""
    moments = sorted({at, *(end for card in cards for _, end, _ in card.runs if end > at)})
    for moment in moments:
        best = max(cards, key=lambda card: card.free_at(moment))
        if best.free_at(moment) >= asked:
            return moment, best
    raise AssertionError("no card is that large")


def report(
    outbox: Outbox,
    job_id: int,
    times: tuple[datetime, datetime, timedelta],
    person: Person,
    where: tuple[int, Card],
    chance: random.Random,
) -> bool:
    """Report one job from its submission to its end; return whether it failed."""
    (at, start, took), (asked, card) = times, where
    peak = int(asked * min(0.99, chance.gauss(person.used, 0.06)))
    kind = chance.random()
    ending = Ending.from_status(1 if kind < 0.06 else 0)  # noqa: PLR2004 - some fail
    device = RunDevice(
        uuid=f"GPU-{card.index}",
        lease_bytes=asked,
        index=card.index,
        name="NVIDIA A10",
        kind=DeviceKind.GPU,
        total_bytes=TOTAL,
    )
    held = [*GROWTH, *(chance.uniform(0.86, 1.0) for _ in range(STEPS - len(GROWTH)))]
    ended = replace(
        device,
        peak=Peak(bytes=peak, source=PeakSource.NVML_SAMPLED, samples=STEPS, interval_s=0.5),
        activity=Activity(utilisation_mean=chance.uniform(0.5, 0.95)),
        timeline=Timeline(step_s=took.total_seconds() / STEPS, bytes=tuple(int(share * peak) for share in held)),
    )
    spec = JobSpec(
        argv=("python", "train.py"),
        cwd="/home",
        account=Account(name=person.name, uid=1000, host="lab"),
        mem_bytes=asked,
        name="train",
        env={},
    )
    fields = {"host": "lab", "worker": "w", "devices": device.uuid, "lease": str(asked)}
    started = encode_started(log_path="/log", devices=(device,))
    payload = encode_ended(ending=ending, duration_s=took.total_seconds(), devices=(ended,))
    state = JobState.SUCCEEDED if ending.exit_code == 0 else JobState.FAILED
    for moment, act, becomes, given in (
        (at, Act.SUBMIT, JobState.QUEUED, {"attempt": 0, "spec": encode_spec(spec)}),
        (start, Act.CLAIM, JobState.STARTING, {"token": "1.a", **fields}),
        (start, Act.STARTED, JobState.RUNNING, {"token": "1.a", "started": started}),
        (start + took, Act.FINISH, state, {"token": "1.a", "ended": payload}),
    ):
        outbox.report(job_id, act, becomes, **given)
        outbox.reported[-1] = replace(outbox.reported[-1], at=moment)
    return state is JobState.FAILED


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:] or [str(HERE)])))
