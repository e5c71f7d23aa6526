"""The jobs a second that the history records, compared with the most that the database's own driver inserts.

A job is four events (submit, claim, started, finish) and leaves seven rows: a job, a run, a device, four events. The
floor is the same number of rows in the same number of transactions, with only the driver's ``executemany``, on tables
without keys, indexes or checks. Jobs overlap, as in practice: the events of ``--width`` jobs are mixed.

    python -m benchmarks.bench_recording [--jobs 4000] [--postgres-url postgresql://…]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy as sa

from benchmarks.measure.figure import Absent, Figure, Floor, Measured
from benchmarks.measure.options import how_many, postgres_url
from benchmarks.measure.place import postgres
from benchmarks.measure.table import report
from gpuqueue.codec.request import encode_ended, encode_spec, encode_started
from gpuqueue.history import migrate
from gpuqueue.history.connect import open_engine, writing
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.device import DeviceKind, Peak, PeakSource
from gpuqueue.model.event import Act, Event
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.run import Ending, RunDevice

BATCHES = (1, 10, 100, 500)
GIB = 2**30
#: The most batches of one measurement: each batch is a transaction that waits for the disk.
MOST_BATCHES = 1000
NOW = datetime(2026, 11, 1, tzinfo=timezone.utc)
ENVIRONMENT = {f"VARIABLE_{number}": "a value of a usual length" for number in range(40)}


def job_events(job_id: int) -> list[tuple[Act, JobState, dict[str, str]]]:
    """Return the events of one job's life."""
    spec = JobSpec(
        argv=("python", "train.py", "--lr", "1e-3"),
        cwd="/home/ada/project",
        account=Account(name="ada", uid=1000, host="laptop"),
        mem_bytes=GIB,
        name="train",
        env=ENVIRONMENT,
    )
    facts: dict[str, Any] = {"uuid": "GPU-0", "lease_bytes": GIB, "index": 0, "name": "GPU", "kind": DeviceKind.GPU}
    before = RunDevice(**facts, total_bytes=24 * GIB)
    peak = Peak(bytes=GIB // 2, source=PeakSource.NVML_SAMPLED, samples=10, interval_s=1.0, shared=False)
    after = RunDevice(**facts, total_bytes=24 * GIB, peak=peak)
    token = {"token": f"1.{job_id}"}
    claim = {**token, "host": "nodeA", "worker": "worker-0", "devices": "GPU-0", "lease": str(GIB)}
    started = encode_started(log_path=f"/state/runs/{job_id}.1/log", devices=(before,))
    ended = encode_ended(ending=Ending.from_status(0), duration_s=12.5, devices=(after,))
    return [
        (Act.SUBMIT, JobState.QUEUED, {"spec": encode_spec(spec)}),
        (Act.CLAIM, JobState.STARTING, claim),
        (Act.STARTED, JobState.RUNNING, {**token, "started": started}),
        (Act.FINISH, JobState.SUCCEEDED, {**token, "ended": ended}),
    ]


def make_events(jobs: int, width: int, first: int) -> list[Event]:
    """Return the events of *jobs* jobs from the id *first*, of which *width* overlap."""
    reported = []
    for start in range(first, first + jobs, width):
        ids = range(start, min(start + width, first + jobs))
        stories = {job_id: job_events(job_id) for job_id in ids}
        reported += [(job_id, *stories[job_id][step]) for step in range(4) for job_id in ids]
    return [
        Event(
            id=f"{first}-{number}",
            act=act,
            job_id=job_id,
            state=state,
            at=NOW + timedelta(milliseconds=number),
            attempt=0 if act is Act.SUBMIT else 1,
            fields=fields,
        )
        for number, (job_id, act, state, fields) in enumerate(reported)
    ]


def record(database: HistoryDatabase, events: list[Event], batch: int) -> float:
    """Return how many seconds the history takes for *events*."""
    began = time.perf_counter()
    for start in range(0, len(events), batch):
        if not database.apply(events[start : start + batch], expected=database.cursor(), epoch="bench"):
            raise SystemExit("somebody else writes into this history")
    return time.perf_counter() - began


def insert_raw(url: str, jobs: int, batch: int) -> float:
    """Return how many seconds the driver alone takes for as many rows of about the same size."""
    engine = open_engine(url)
    columns = 12
    mark = "?" if engine.dialect.name == "sqlite" else "%s"
    with writing(engine) as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS bench_floor"))
        names = ", ".join(f"c{number} TEXT" for number in range(columns))
        connection.execute(sa.text(f"CREATE TABLE bench_floor ({names})"))
    statement = f"INSERT INTO bench_floor VALUES ({', '.join([mark] * columns)})"  # noqa: S608 - no values in it
    row = ("a value of a usual length",) * columns
    rows = 7 * jobs
    each = max(1, 7 * batch // 4)
    began = time.perf_counter()
    for start in range(0, rows, each):
        with writing(engine) as connection:
            cursor = connection.connection.cursor()
            cursor.executemany(statement, [row] * min(each, rows - start))
            cursor.close()
    took_s = time.perf_counter() - began
    with writing(engine) as connection:
        connection.execute(sa.text("DROP TABLE bench_floor"))
    engine.dispose()
    return took_s


def figures(*, quick: bool = False, jobs: int = 4000, width: int = 50, url: str | None = None) -> Measured:
    """Measure SQLite, and PostgreSQL where there is one."""
    jobs = min(jobs, 600) if quick else jobs
    with tempfile.TemporaryDirectory() as directory:
        yield from _measure("sqlite", f"sqlite:///{directory}/history.db", jobs, width)
    with postgres(url) as given:
        if given is None:
            yield Absent(name="recording.postgresql", why="no PostgreSQL here: give --postgres-url")
        else:
            yield from _measure("postgresql", given, jobs, width)


def _measure(label: str, url: str, jobs: int, width: int) -> Measured:
    """Yield a figure for each size of batch."""
    migrate.upgrade(url)
    database = HistoryDatabase(url)
    first = (database.max_job_id() or 0) + 1
    for batch in BATCHES:
        count = min(jobs, max(1, MOST_BATCHES * batch // 4))
        events = make_events(count, width, first)
        first += count
        floor = Floor(name="as many rows, the driver alone", value=count / insert_raw(url, count, batch))
        took_s = record(database, events, batch)
        name = f"recording.{label}.batch{batch}"
        yield Figure(name=name, value=count / took_s, unit="jobs/s", floor=floor, of=count)
    database.close()


def main() -> None:
    """Measure all and print a table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", type=how_many, default=4000)
    arguments.add_argument("--width", type=how_many, default=50, help="jobs under way at a time")
    arguments.add_argument(
        "--postgres-url", type=postgres_url, help="default: a private server, which does not wait for the disk"
    )
    chosen = arguments.parse_args()
    report(figures(jobs=chosen.jobs, width=chosen.width, url=chosen.postgres_url))


if __name__ == "__main__":
    main()
