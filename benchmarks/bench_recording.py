"""How many jobs a second the book takes, as a ratio to what the database's own driver inserts at best.

A job is four events (submit, claim, started, finish) and leaves seven rows: a job, a run, a device, four events.
The floor is the same number of rows in the same number of transactions, with nothing but the driver's ``executemany``
on tables without keys, indexes or checks. Jobs overlap, as they do in life: the events of ``--width`` jobs are mixed.

    python benchmarks/bench_recording.py [--jobs 4000] [--postgres-url postgresql://…]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gpuqueue.book import migrate
from gpuqueue.book.book import Book
from gpuqueue.book.connect import open_engine, writing
from gpuqueue.codec import encode_ended, encode_spec, encode_started
from gpuqueue.device import DeviceKind, Peak, PeakSource
from gpuqueue.event import Act, Event
from gpuqueue.job import Account, JobSpec, JobState
from gpuqueue.run import Ending, RunDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCHES = (1, 10, 100, 500)
GIB = 2**30
#: Most events of one measurement with small batches: each batch is a transaction that waits for the disk.
MOST_BATCHES = 1000
NOW = datetime(2026, 11, 1, tzinfo=timezone.utc)
ENVIRONMENT = {f"VARIABLE_{number}": "a value of a usual length" for number in range(40)}


def job_events(job_id: int) -> list[tuple[Act, JobState, dict[str, str]]]:
    """Return what one job tells in its life."""
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
    """Return the events of *jobs* jobs from the id *first*, *width* of which are under way at a time."""
    told = []
    for start in range(first, first + jobs, width):
        ids = range(start, min(start + width, first + jobs))
        stories = {job_id: job_events(job_id) for job_id in ids}
        told += [(job_id, *stories[job_id][step]) for step in range(4) for job_id in ids]
    return [
        Event(
            id=f"{first}-{number}",
            act=act,
            job_id=job_id,
            state=state,
            at=NOW,
            attempt=0 if act is Act.SUBMIT else 1,
            fields=fields,
        )
        for number, (job_id, act, state, fields) in enumerate(told)
    ]


def record(book: Book, events: list[Event], batch: int) -> float:
    """Return how many seconds the book takes for *events*."""
    began = time.perf_counter()
    for start in range(0, len(events), batch):
        if not book.apply(events[start : start + batch], expected=book.cursor(), epoch="bench"):
            raise SystemExit("somebody else writes into this book")
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


def measure(label: str, url: str, jobs: int, width: int) -> None:
    """Print one line for each size of batch."""
    migrate.upgrade(url)
    book = Book(url)
    first = (book.max_job_id() or 0) + 1
    for batch in BATCHES:
        count = min(jobs, max(1, MOST_BATCHES * batch // 4))
        events = make_events(count, width, first)
        first += count
        took_s, floor_s = record(book, events, batch), insert_raw(url, count, batch)
        print(
            f"{label:<10}  {batch:>4} events a batch  {count / took_s:>8.0f} jobs/s"
            f"  floor {count / floor_s:>8.0f} jobs/s  {took_s / floor_s:>5.1f} x the floor's time"
        )
    book.close()


@contextmanager
def postgres(given: str | None) -> Iterator[str | None]:
    """Give the URL of a PostgreSQL database: the given one, or a new one on the tests' private server."""
    if given:
        yield given
        return
    try:
        from private_postgres import NoPostgres, any_server  # noqa: PLC0415 - only with tests/ on the path
    except ImportError:
        yield None
        return
    try:
        with any_server() as server, server.database() as url:
            yield url
    except NoPostgres:
        yield None


def main() -> None:
    """Measure SQLite, and PostgreSQL where there is one."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", type=int, default=4000)
    arguments.add_argument("--width", type=int, default=50, help="jobs under way at a time")
    arguments.add_argument("--postgres-url", help="default: a private server, with PYTHONPATH=tests")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        measure("sqlite", f"sqlite:///{directory}/book.db", chosen.jobs, chosen.width)
    with postgres(chosen.postgres_url) as url:
        if url is None:
            print("postgresql  not measured: give --postgres-url")
        else:
            measure("postgresql", url, chosen.jobs, chosen.width)


if __name__ == "__main__":
    main()
