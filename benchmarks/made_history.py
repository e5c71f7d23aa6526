"""A history of any length: what a site with 64 devices and 40 users leaves in a year, the same each time."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

import sqlalchemy as sa

from gpuqueue.history import text_index
from gpuqueue.history.connect import open_engine
from gpuqueue.history.tables import jobs, run_devices, runs
from gpuqueue.text.units import GIB

NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)
#: The time that the whole history spans.
SPAN = timedelta(days=365)
HOSTS, PER_HOST = 8, 8
MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA L40S", "NVIDIA A10")
USERS = [f"user{number:02}" for number in range(40)]
#: Shares of the runs that fail and are lost, and the job among each hundred thousand with a rare exit code.
FAILED, LOST, RARE = 0.1, 0.02, 7
#: A spec of a usual size: most of a job's row.
SPEC = '{"v":1,"env":{' + ",".join(f'"VARIABLE_{number}":"{"x" * 40}"' for number in range(10)) + "}}"
BATCH = 5000

Row = dict[str, Any]


def rows(count: int) -> Iterator[tuple[Row, Row, Row]]:
    """Yield the rows of each job in the three tables."""
    chance = random.Random(1)  # noqa: S311 - the same history each time
    for number in range(1, count + 1):
        yield one(number, NOW - SPAN + SPAN * (number / count), chance)


def one(number: int, at: datetime, chance: random.Random) -> tuple[Row, Row, Row]:
    """Return the rows of one job."""
    card = chance.randrange(HOSTS * PER_HOST)
    host = f"node{card // PER_HOST}"
    took_s = round(chance.lognormvariate(6, 2), 3)
    asked = chance.choice((6, 12, 24, 48)) * GIB
    peak = int(asked * chance.random())
    ending: str = "exited"
    code: int | None = 0
    if chance.random() < FAILED:
        ending, code = chance.choice((("exited", 1), ("exited", 2), ("out_of_memory", 1), ("timed_out", None)))
    if chance.random() < LOST:
        ending, code = "lost", None
    if number % 100_000 == RARE:
        ending, code = "exited", 77  # ten in a million
    measured = ending != "lost"
    start = at + timedelta(seconds=chance.expovariate(1 / 300))
    end = start + timedelta(seconds=took_s)
    state = "succeeded" if code == 0 else ("lost" if ending == "lost" else "failed")
    last = {
        "ending": ending,
        "exit_code": code,
        "duration_s": took_s if measured else None,
        "peak_bytes": peak if measured else None,
    }
    name = f"job{chance.randrange(5000)}"
    job = {
        "id": number, "name": name, "user_name": chance.choice(USERS), "user_uid": 1000, "submit_host": "laptop",
        "state": state, "reason": None, "priority": 1, "command": f"python {name}.py --seed {number}",
        "script": f"{name}.py", "interpreter": "/usr/bin/python3", "cwd": "/home/ada", "mem_bytes": asked, "gpus": 1,
        "time_limit_s": None, "pool": "", "attempt": 1, "losses": 0, "submitted_at": at, "claimed_at": start,
        "started_at": start, "ended_at": end, "host": host, "spec": SPEC, **last,
    }  # fmt: skip
    run = {
        "job_id": number, "attempt": 1, "token": f"1.{number}", "host": host, "worker": "w", "claimed_at": start,
        "started_at": start, "ended_at": end, "duration_s": last["duration_s"], "ending": ending, "exit_code": code,
        "signal": None, "detail": "", "log_path": "/log", "peak_at_once_bytes": None,
    }  # fmt: skip
    device = {
        "job_id": number, "attempt": 1, "device_uuid": f"GPU-{card:04}", "device_index": 0,
        "host_index": card % PER_HOST, "name": MODELS[card // PER_HOST % len(MODELS)], "kind": "gpu",
        "total_bytes": 80 * GIB, "lease_bytes": asked, "peak_bytes": last["peak_bytes"],
        "peak_source": "nvml_sampled" if measured else "none", "samples": 9,
        "na_samples": 0, "interval_s": 1.0, "shared": False, "first_memory_s": 1.0,
        "utilisation_mean": chance.random() if measured else None, "utilisation_max": 1.0, "temperature_max_c": 60.0,
    }  # fmt: skip
    return job, run, device


def insert(connection: sa.Connection, table: sa.Table, made: list[Row]) -> None:
    """Insert rows as fast as the driver can."""
    names = ", ".join(made[0])
    cursor = connection.connection.cursor()
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" * len(made[0]))
        reported = [
            [f"{v:%Y-%m-%d %H:%M:%S.%f}" if isinstance(v, datetime) else v for v in row.values()] for row in made
        ]
        cursor.executemany(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", reported)  # noqa: S608 - names of ours
    else:
        with cursor.copy(f"COPY {table.name} ({names}) FROM STDIN") as copy:
            for row in made:
                copy.write_row(tuple(row.values()))


def fill(url: str, count: int) -> None:
    """Write *count* jobs into the tables."""
    engine = open_engine(url)
    made = rows(count)
    began = time.perf_counter()
    with engine.begin() as connection:  # the recorder's way of writing gives up after half a minute
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA cache_size = -400000")
        indexes = [index for table in (jobs, runs, run_devices) for index in table.indexes]
        text_index.drop(connection)
        for index in indexes:  # creating them at the end takes a tenth of the time
            index.drop(connection)
        while some := list(islice(made, BATCH)):
            for table, place in ((jobs, 0), (runs, 1), (run_devices, 2)):
                insert(connection, table, [row[place] for row in some])
        for index in indexes:
            index.create(connection)
        began_texts = time.perf_counter()
        text_index.make(connection)
        texts_s = time.perf_counter() - began_texts
    if engine.dialect.name == "postgresql":  # PostgreSQL's own daemon would do this later
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
    engine.dispose()
    took_s = time.perf_counter() - began
    print(f"{count} jobs written in {took_s:.0f} s, {texts_s:.0f} s of it the index of texts", file=sys.stderr)
