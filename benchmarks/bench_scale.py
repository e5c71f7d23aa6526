"""Shows how costs grow: a million waiting jobs, and a simulated week of 10 000 ended jobs an hour.

200 users, 64 devices on 8 hosts, 30 sizes, 4 time limits, 4 priorities. First the queue is filled step by step. Then
the week passes with a full queue: as many jobs are submitted as end. The figures are the server's own time for a claim,
the store's memory for a waiting job, what remains in the store of an ended one, the speed of recording, and the cost of
the history's first page and of a week's statistics, on the first day and on the last.

Every script, the queue's methods, the recorder, the history (SQLite) and its files are real. The clock is simulated (as
in gpuqueue simulate), no job computes, and the store does not wait for the disk. Of each day *one hour* goes through
all steps: submit, claim, started, finish, recorder, settle. The jobs of the other hours are written by the history's
own writer, in the recorder's batches, and do not pass through the store: they make the history as long as stated.
Waiting jobs are not promoted by aging.

    python -m benchmarks.bench_scale [--pending 1000 100000 1000000] [--days 7] [--hours 24] [--an-hour 10000]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.bench_history import best_s
from benchmarks.measure.figure import Figure, Floor, Measured
from benchmarks.measure.options import how_many
from benchmarks.measure.place import Store, private_store
from benchmarks.measure.rounds import quantile, timed
from benchmarks.measure.slow_log import (
    FLOOR,
    LOGGED_US,
    READS,
    claims_in_log,
    costs_of,
    reader,
    scripts_in_log,
    took_us,
)
from benchmarks.measure.table import report
from benchmarks.scale_events import MadeHours
from benchmarks.scale_site import DEVICES, HOSTS, SimulatedSite, specs
from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec.request import encode_spec
from gpuqueue.history import migrate
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.history_query import HistoryQuery
from gpuqueue.model.statistics import By
from gpuqueue.queue.keys import SEQ
from gpuqueue.queue.simulated_clock import CLOCK

HOUR_MS = 3600_000
#: The events of a job: submit, claim, started, finish.
EVENTS = 4
#: Claims that are measured at each size of the queue, and calls of the floor.
CLAIMS, FLOORS = 2_000, 500
#: Field of a day -> name and unit of its figure.
_LABELS = {
    "claim_p50_us": ("claim.p50", "us"),
    "claim_p99_us": ("claim.p99", "us"),
    "recorded": ("recorded", "jobs/s"),
    "written": ("written", "jobs/s"),
    "page_ms": ("page", "ms"),
    "stats_ms": ("stats", "ms"),
    "stats_us": ("stats-each", "us"),
    "history_bytes": ("history", "bytes"),
    "keys_left": ("keys", "keys"),
    "store_mib": ("store", "MiB"),
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of the site."""

    pending: Sequence[int] = (1_000, 100_000, 1_000_000)
    days: int = 7
    hours: int = 24
    an_hour: int = 10_000
    claims: int = CLAIMS


QUICK = Size(pending=(1_000, 10_000), days=2, hours=2, an_hour=1_000, claims=300)


@dataclass(frozen=True, kw_only=True)
class Day:
    """The figures of one day.

    ``recorded`` is the jobs a second of the recorder from the outbox, ``written`` those of the history's writer alone.
    ``page_ms`` and ``stats_ms`` are the history's first page and the statistics of seven days by user; ``stats_us`` is
    the time of the statistics for each job in them. ``history_bytes`` is per ended job. ``keys_left`` is what the store
    wrongly still holds of each job that *passed through it*: one hour of each day.
    """

    claim_p50_us: float
    claim_p99_us: float
    recorded: float
    written: float
    page_ms: float
    stats_ms: float
    stats_us: float
    history_bytes: float
    keys_left: float
    store_mib: float


def figures(*, quick: bool = False, size: Size | None = None) -> Measured:
    """Fill the queue, let the week pass, and yield the costs at its beginning and its end."""
    size = size or (QUICK if quick else Size())
    with private_store(durable=False, opened=False) as store, tempfile.TemporaryDirectory(prefix="gq-scale-") as place:
        path = Path(place) / "history.db"
        migrate.upgrade(f"sqlite:///{path}")
        database = HistoryDatabase(f"sqlite:///{path}")
        site = SimulatedSite(store, database)
        _listen(store, FLOORS)
        (least,) = costs_of(store.client, (scripts_in_log(FLOOR),), reader(store.client), FLOORS)
        floor = Floor(name=f"a script of {READS} reads", value=float(least.p50))
        yield from _filled(site, store, size, floor)
        yield from _week(_Week(site, store, path, size), size, floor)
        site.close()
        database.close()


# ---- while the queue grows -------------------------------------------------------------------------------------------


def _filled(site: SimulatedSite, store: Store, size: Size, floor: Floor) -> Iterator[Figure]:
    """Fill the queue step by step; yield the cost of a claim and the memory of a waiting job at each size."""
    text = Floor(name="the spec's own text", value=_mean_text_bytes())
    pending, empty_bytes = 0, site.used_bytes()
    for more in sorted(size.pending):
        site.fill(more - pending)
        pending = more
        site.forget_nonces()
        taken = (site.used_bytes() - empty_bytes) / pending
        yield Figure(name=f"scale.{pending}.store", value=taken, unit="bytes", floor=text, of=pending)
        costs = _claims(site, store, size.claims)
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            value = quantile(costs, share)
            yield Figure(name=f"scale.{pending}.claim.{label}", value=value, unit="us", floor=floor, of=len(costs))


def _claims(site: SimulatedSite, store: Store, count: int) -> list[float]:
    """Return the server's time for each of *count* claims, in microseconds, while jobs come and go."""
    _listen(store, count)
    turns = -(-count // (HOSTS * DEVICES))
    for _ in range(turns):
        site.clock.now_ms += 1000
        site.turn(1.0)
    costs = _heard(store, turns * HOSTS * DEVICES)
    site.record()
    return costs


def _listen(store: Store, claims: int) -> None:
    """Make the server log the time of each script from now on."""
    store.client.config_set("slowlog-max-len", 20 * claims)
    store.client.config_set("slowlog-log-slower-than", LOGGED_US)
    store.client.slowlog_reset()


def _heard(store: Store, claims: int) -> list[float]:
    """Return the times of the claims since :func:`_listen`; a claim that was not logged counts as the threshold."""
    log: list[dict[str, Any]] = store.client.slowlog_get(40 * claims)
    store.client.config_set("slowlog-log-slower-than", -1)
    slow = [float(each) for each in took_us(log, claims_in_log(CLOCK))]
    return [float(LOGGED_US)] * (claims - len(slow)) + slow


def _mean_text_bytes() -> float:
    texts = [len(encode_spec(spec)) for spec in specs()]
    return sum(texts) / len(texts)


# ---- the week --------------------------------------------------------------------------------------------------------


class _Week:
    """Lets days pass."""

    def __init__(self, site: SimulatedSite, store: Store, path: Path, size: Size) -> None:
        self._site = site
        self._store = store
        self._path = path
        self._size = size
        self._made = MadeHours(site.database)
        self._begin_ms = site.clock.now_ms
        self._bytes = self._history_bytes()
        self._other_keys = site.keys().other
        #: Jobs that have ended since the week began.
        self.ended = 0
        #: Those of them that passed through the store. The others were only written into the history.
        self.passed = 0

    def day(self) -> Day:
        """Let one day pass, and measure."""
        site, an_hour = self._site, self._size.an_hour
        made = an_hour * (self._size.hours - 1)
        written_s = timed(lambda: self._made_hours(made))
        _listen(self._store, an_hour)
        events = site.hour(an_hour)
        costs = _heard(self._store, an_hour)
        recorded_s = timed(site.record)
        self.ended += made + events // EVENTS
        self.passed += events // EVENTS
        keys = site.keys()
        left = keys.of_jobs - 2 * keys.live + keys.other - self._other_keys
        stats_s = best_s(self._statistics)
        return Day(
            claim_p50_us=quantile(costs, 0.5),
            claim_p99_us=quantile(costs, 0.99),
            recorded=events / EVENTS / recorded_s,
            written=made / written_s if made else 0.0,
            page_ms=1e3 * best_s(lambda: site.database.history(HistoryQuery())),
            stats_ms=1e3 * stats_s,
            stats_us=1e6 * stats_s / self.ended,
            history_bytes=(self._history_bytes() - self._bytes) / self.ended,
            keys_left=left / self.passed,
            store_mib=site.used_bytes() / 2**20,
        )

    def _made_hours(self, jobs: int) -> None:
        span_ms = HOUR_MS * (self._size.hours - 1)
        last = int(self._store.client.incrby(SEQ, jobs))  # ids that the queue uses for no other job
        self._made.write(jobs, first_id=last - jobs + 1, begin_ms=self._site.clock.now_ms, span_ms=span_ms)
        self._site.clock.now_ms += span_ms

    def _statistics(self) -> object:
        until = from_epoch_ms(self._site.clock.now_ms)
        return self._site.database.statistics(by=By.USER, since=until - timedelta(days=7), until=until)

    def _history_bytes(self) -> int:
        """Return the size of the history, including its journal."""
        return sum(each.stat().st_size for each in self._path.parent.iterdir() if each.name.startswith(self._path.name))


def _week(week: _Week, size: Size, floor: Floor) -> Iterator[Figure]:
    """Let the days pass; yield the figures of the first and the last day, the last compared with the first."""
    first = week.day()
    yield from _reported("first", first, None, floor, size)
    last = first
    for _ in range(size.days - 1):
        last = week.day()
    yield Figure(name="scale.week.ended", value=float(week.ended), unit="jobs")
    yield Figure(name="scale.week.passed", value=float(week.passed), unit="jobs")
    yield from _reported("last", last, first, floor, size)


def _reported(name: str, day: Day, before: Day | None, floor: Floor, size: Size) -> Iterator[Figure]:
    """Yield the figures of one day: its claims compared with *floor*, or all of them with the day *before*."""
    for what, (label, unit) in _LABELS.items():
        beside = floor if what.startswith("claim") else None
        if before is not None:
            beside = Floor(name="on the first day", value=getattr(before, what))
        of = size.an_hour if what.startswith(("claim", "recorded")) else 1
        yield Figure(name=f"scale.{name}.{label}", value=getattr(day, what), unit=unit, floor=beside, of=of)


def main() -> None:
    """Measure all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    whole_size = Size()
    parser.add_argument("--pending", type=how_many, nargs="+", default=list(whole_size.pending))
    parser.add_argument("--days", type=how_many, default=whole_size.days)
    parser.add_argument("--hours", type=how_many, default=whole_size.hours, help="hours in a day")
    parser.add_argument("--an-hour", type=how_many, default=whole_size.an_hour, help="jobs that end in an hour")
    options = parser.parse_args()
    size = Size(pending=options.pending, days=options.days, hours=options.hours, an_hour=options.an_hour)
    report(figures(size=size))


if __name__ == "__main__":
    main()
