"""The time of a job from submit to history, idle and under load, with floors measured in the same rounds.

python -m benchmarks.bench_corridor [--rounds 100] [--jobs 200] [--devices sim:1x8G]

A private machine: embedded store, recorder, one simulated device with 4 slots, a real Celery worker. Three moments of
each job are measured, from the call of submit on:

granted   the worker knows that the job may start: queue and claim, without a process. Observed from outside, by the
          first file that the worker writes after the store's answer (:mod:`benchmarks.measure.run_watch`)
start     the job's first instruction, after the start of a shim
recorded  counted from its start: the job has ended and is in the history's file

The floors are the same without a queue: a durable LPUSH that a waiting BLPOP receives, then a spawn of the same
command, then one commit into SQLite. *load* is a busy process on each core and 10 000 other waiting jobs.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import redis

from benchmarks.measure.figure import Figure, Floor, Measured
from benchmarks.measure.options import devices, how_many
from benchmarks.measure.place import Machine, private_machine
from benchmarks.measure.rounds import alternate_timed, medians, quantile, until
from benchmarks.measure.run_watch import GRANTED, RunWatch
from benchmarks.measure.table import report
from gpuqueue.queue.connect import connect

ROUNDS, QUICK_ROUNDS = 100, 15
WAITING, QUICK_WAITING = 10_000, 500
#: Trivial jobs of one round of the throughput, and the number of rounds.
JOBS, QUICK_JOBS = 200, 20
JOB_ROUNDS = 5
SLOTS = 4
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
BURN = "while True: pass"
FLOORS = {
    "granted": GRANTED,
    "start": "durable LPUSH, BLPOP, spawn",
    "recorded": "the process, one SQLite commit",
}
#: Moment -> its seconds in each round.
Moments = dict[str, list[float]]


def figures(
    *, quick: bool = False, rounds: int | None = None, jobs: int | None = None, devices: str = "sim:1x8G"
) -> Measured:
    """Yield the moments of single jobs, idle and under load, and the jobs a second."""
    rounds, jobs = rounds or (QUICK_ROUNDS if quick else ROUNDS), jobs or (QUICK_JOBS if quick else JOBS)
    with private_machine(devices, SLOTS=str(SLOTS)) as machine:
        yield from _moments("idle", machine, rounds)
        yield _throughput(machine, jobs)
        with _busy(machine, QUICK_WAITING if quick else WAITING):
            yield from _moments("load", machine, rounds)


def _moments(name: str, machine: Machine, rounds: int) -> Iterator[Figure]:
    with closing(Direct(machine)) as direct:
        ours: Moments = {moment: [] for moment in FLOORS}
        floors: Moments = {moment: [] for moment in FLOORS}
        for turn in range(rounds + 1):
            for found, once in ((ours, partial(_through_the_queue, machine)), (floors, direct.once)):
                for moment, took_s in once().items():
                    if turn:  # the first turn warms up
                        found[moment].append(took_s)
    for moment, floor in FLOORS.items():
        for label, share in SHARES.items():
            value, low = quantile(ours[moment], share), quantile(floors[moment], share)
            yield Figure(
                name=f"latency.{name}.{moment}.{label}",
                value=value * 1e3,
                unit="ms",
                floor=Floor(name=f"{floor} ({label})", value=low * 1e3),
                rounds=rounds,
            )


def stamping(stamp: Path) -> list[str]:
    """Return a minimal command that writes the time of its start."""
    return ["/bin/sh", "-c", f"date +%s.%N > {stamp}"]


def _through_the_queue(machine: Machine) -> dict[str, float]:
    stamp, client = machine.place / "stamp", machine.client
    machine.settings.runs_dir.mkdir(mode=0o700, exist_ok=True)  # otherwise the first run would create it
    with closing(RunWatch(machine.settings.runs_dir)) as watch:
        began = time.time()
        job = client.jobs.submit(stamping(stamp), mem="1M", cwd=machine.place)
        granted = watch.may_start()
    recorded = _recorded(machine, job.id)
    started = float(stamp.read_text())
    stamp.unlink()
    return {"granted": granted - began, "start": started - began, "recorded": recorded - started}


def _recorded(machine: Machine, job_id: int) -> float:
    """Wait until the history's file has the end of a job; return when that was, in seconds since 1970."""
    path = machine.settings.database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as database:
        asked = "SELECT 1 FROM jobs WHERE id = ? AND ended_at IS NOT NULL"
        until(lambda: database.execute(asked, (job_id,)).fetchone(), f"the record of job {job_id}")
        return time.time()


def _all_recorded(machine: Machine, job_ids: Sequence[int]) -> None:
    """Wait until the history's file has the end of each job.

    One wait for all jobs: a wait for each would take the CPUs from the jobs.
    """
    path = machine.settings.database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as database:
        asked = "SELECT count(*) FROM jobs WHERE id BETWEEN ? AND ? AND ended_at IS NOT NULL"
        between = (min(job_ids), max(job_ids))
        until(
            lambda: database.execute(asked, between).fetchone()[0] == len(job_ids),
            f"the record of {len(job_ids)} jobs",
            every_s=0.005,
        )


class Direct:
    """The floor: a thread that waits on the same store spawns the same command, then commits one row."""

    def __init__(self, machine: Machine) -> None:
        self._stamp = machine.place / "direct"
        self._client: redis.Redis = connect(machine.settings.redis_url, wait_s=60)
        self._waiting: redis.Redis = connect(machine.settings.redis_url, wait_s=60)
        self._database = sqlite3.connect(machine.place / "floor.db")
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("CREATE TABLE IF NOT EXISTS floor (at REAL)")

    def once(self) -> dict[str, float]:
        """Return the seconds of one hand-over, spawn and record."""
        handed: list[float] = []

        def wait() -> None:
            self._waiting.blpop(["bench:floor"], 30)
            handed.append(time.time())
            subprocess.run(stamping(self._stamp), check=True)

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(self._blocked, "a BLPOP")
        began = time.time()
        self._client.lpush("bench:floor", "x")
        waiter.join()
        self._database.execute("INSERT INTO floor VALUES (?)", (began,))
        self._database.commit()
        ended, started = time.time(), float(self._stamp.read_text())
        return {"granted": handed[0] - began, "start": started - began, "recorded": ended - started}

    def _blocked(self) -> bool:
        return any(each["cmd"] == "blpop" for each in self._client.client_list())

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._waiting.close()
        self._database.close()


def _throughput(machine: Machine, jobs: int) -> Figure:
    """Measure trivial jobs, each in its own shim and recorded; the floor spawns them one after the other.

    Both alternate, and the figure is the median of the rounds.
    """

    def ours() -> None:
        # Outside a repository, as above: in a repository git takes up to a fifth of the time.
        submitted = [machine.client.jobs.submit(["/bin/true"], mem="1M", cwd=machine.place).id for _ in range(jobs)]
        _all_recorded(machine, submitted)

    def directly() -> None:
        for _ in range(jobs):
            subprocess.run(["/bin/true"], check=True)

    acts: dict[str, Callable[[], object]] = {"ours": ours, "floor": directly}
    found = medians(alternate_timed(JOB_ROUNDS, acts))
    floor = Floor(name="subprocess.run(true) in a row", value=jobs / found["floor"])
    value = jobs / found["ours"]
    return Figure(name="throughput.jobs", value=value, unit="jobs/s", floor=floor, rounds=JOB_ROUNDS, of=jobs)


@contextmanager
def _busy(machine: Machine, waiting: int) -> Iterator[None]:
    """Keep every core busy, and *waiting* other jobs in the queue for a device that is not served."""
    spec = machine.client.jobs.submit(["true"], mem="1M", device="cpu").spec
    for _ in range(waiting):
        machine.client.queue.requests.submit(spec)
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        _end(burners)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for each in processes:
        each.kill()
        each.wait()


def main() -> None:
    """Measure all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=how_many, default=ROUNDS)
    parser.add_argument("--jobs", type=how_many, default=JOBS, help="trivial jobs of one round of many")
    parser.add_argument("--devices", type=devices, default="sim:1x8G", metavar="SPEC")
    options = parser.parse_args()
    report(figures(rounds=options.rounds, jobs=options.jobs, devices=options.devices))


if __name__ == "__main__":
    main()
