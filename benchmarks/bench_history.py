"""The cost of a page of the history of a million jobs: each filter, each order, and statistics of the last days.

    nice -n 5 python -m benchmarks.bench_history [--jobs 1000000] [--plans]

The floor is a page of 50 jobs by primary key through the same code, with their runs and devices: no filter can be
cheaper. Each figure is the best of three, as a time and as a multiple of the floor; ``--plans`` prints the query plan
of pages that take more than 100 ms. The history is filled by plain INSERTs; one run in ten fails, two in a hundred are
lost.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import sqlalchemy as sa

from benchmarks.made_history import NOW, SPAN, fill
from benchmarks.measure.command import beside_click
from benchmarks.measure.figure import Absent, Figure, Floor, Measured
from benchmarks.measure.home import clean_environ
from benchmarks.measure.options import how_many, postgres_url
from benchmarks.measure.place import GPUQUEUE, postgres, quiet
from benchmarks.measure.rounds import timed
from benchmarks.measure.table import report
from gpuqueue.history import filters, migrate
from gpuqueue.history.connect import open_engine, reading
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.history_query import HistoryQuery, Sort
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind
from gpuqueue.model.statistics import By
from gpuqueue.text.units import GIB

#: Above this a page counts as slow, in seconds.
SLOW_S = 0.1
#: The number of measurements, of which the best counts.
TIMES = 3


def questions(count: int) -> dict[str, HistoryQuery]:
    """Return the queries by their descriptions. Rare or absent values are the hardest."""
    peak, wide = {"sort": Sort.PEAK}, NOW - timedelta(days=7)
    given: dict[str, dict[str, Any]] = {
        "all": {},
        "user": {"user": "user07"},
        "user, nobody": {"user": "nobody"},
        "name": {"name": "job42"},
        "state succeeded": {"states": (JobState.SUCCEEDED,)},
        "state failed or lost": {"states": (JobState.FAILED, JobState.LOST)},
        "state running (none)": {"states": (JobState.RUNNING,)},
        "ending exited": {"endings": (EndingKind.EXITED,)},
        "ending out_of_memory": {"endings": (EndingKind.OUT_OF_MEMORY,)},
        "endings lost, timed_out": {"endings": (EndingKind.LOST, EndingKind.TIMED_OUT)},
        "ending preempted (none)": {"endings": (EndingKind.PREEMPTED,)},
        "exit code 0": {"exit_code": 0},
        "exit code 77 (rare)": {"exit_code": 77},
        "exit code 99 (none)": {"exit_code": 99},
        "since 7d": {"since": wide},
        "until a year ago": {"until": NOW - SPAN + timedelta(days=1)},
        "device": {"device": "GPU-0003"},
        "device, one host's": {"device": "GPU-000"},
        "model": {"model": "a100"},
        "model (none)": {"model": "V100"},
        "host": {"host": "node3"},
        "host (none)": {"host": "gone"},
        "min peak 20G": {"min_peak_bytes": 20 * GIB},
        "min peak 100G (none)": {"min_peak_bytes": 100 * GIB},
        "min duration 1d": {"min_duration_s": 86400},
        "min duration 30d (none)": {"min_duration_s": 30 * 86400},
        "command, usual": {"text": "JOB4"},
        "command, rare": {"text": f"--seed {count // 2}"},
        "command, one in 5000": {"text": "job4242.py"},
        "command, one in 500": {"text": "job424"},
        "command, only long ago": {"text": f"--seed {str(count // 4)[:2]}"},
        "command, of common parts": {"text": "thon job4.py --seed 12"},
        "command, two letters (none)": {"text": "zq"},
        "command, rare, by peak": {**peak, "text": f"--seed {count // 2}"},
        "command, usual, by peak": {**peak, "text": "JOB4"},
        "command, rare, 7 days": {"text": "nowhere", "since": wide},
        "command, rare, one user": {"text": "nowhere", "user": "user07"},
        "user and failed": {"user": "user07", "states": (JobState.FAILED,)},
        "user and host, 7 days": {"user": "user07", "host": "node3", "since": wide},
        "user and out of memory": {"user": "user07", "endings": (EndingKind.OUT_OF_MEMORY,)},
        "by peak, a user's": {**peak, "user": "user07"},
        "by peak, 7 days": {**peak, "since": wide},
        "by peak, of a model": {**peak, "model": "H200"},
        "by peak, out of memory": {**peak, "endings": (EndingKind.OUT_OF_MEMORY,)},
        "by duration, min peak": {"sort": Sort.DURATION, "min_peak_bytes": 40 * GIB},
        "by peak, succeeded": {**peak, "states": (JobState.SUCCEEDED,)},
        "by ended, succeeded": {"sort": Sort.ENDED, "states": (JobState.SUCCEEDED,)},
        "by duration, exit code 1": {"sort": Sort.DURATION, "exit_code": 1},
        "until 11 months ago": {"until": NOW - SPAN + timedelta(days=30)},
        "since 90d, reversed": {"since": NOW - timedelta(days=90), "reverse": True},
        "page in the middle": {"after_id": count // 2},
    }
    for sort in Sort:
        given[f"by {sort}"] = {"sort": sort}
        given[f"by {sort}, reversed"] = {"sort": sort, "reverse": True}
        given[f"by {sort}, in the middle"] = {"sort": sort, "after_id": count // 2}
    return {label: HistoryQuery(**query) for label, query in given.items()}


def best_s(act: Callable[[], object]) -> float:
    """Return the time of the best of three, in seconds."""
    times: list[float] = []
    while len(times) < TIMES and (not times or times[-1] <= 10 * SLOW_S):  # a slow query will not become fast
        times.append(timed(act))
    return min(times)


def figures(
    *,
    quick: bool = False,
    count: int = 1_000_000,
    only: str | None = None,
    path: str | None = None,
    url: str | None = None,
    plans: bool = False,
) -> Measured:
    """Measure SQLite, and PostgreSQL where there is one."""
    count = min(count, 20_000) if quick else count
    if only != "postgresql":
        with tempfile.TemporaryDirectory() as directory:
            yield from _measure("sqlite", f"sqlite:///{path or f'{directory}/history.db'}", count, plans=plans)
    if only != "sqlite":
        with postgres(url) as given:
            if given is None:
                yield Absent(name="history.postgresql", why="no PostgreSQL here: give --postgres-url")
            else:
                yield from _measure("postgresql", given, count, plans=plans)


def _measure(label: str, url: str, count: int, *, plans: bool) -> Measured:
    """Fill the history at *url*, if it is empty, and yield a figure for each query."""
    migrate.upgrade(url)
    database = HistoryDatabase(url)
    if database.max_job_id() is None:
        fill(url, count)
    yield Figure(name=f"history.{label}.jobs", value=float(count), unit="jobs")
    page_s = best_s(lambda: database.history(HistoryQuery(before_id=count)))
    floor = Floor(name="a page by primary key", value=1e3 * page_s)
    for name, query in questions(count).items():
        took_s = best_s(partial(database.history, query))
        yield Figure(name=f"history.{label}.{_slug(name)}", value=1e3 * took_s, unit="ms", floor=floor, rounds=TIMES)
        if took_s > SLOW_S and plans:
            explain(url, query)
    for by, days in ((By.USER, 7), (By.USER, 30), (By.DEVICE, 30), (By.DAY, 30), (By.USER, 365)):
        since = NOW - timedelta(days=days)
        took_s = best_s(partial(database.statistics, by=by, since=since, until=NOW))
        yield Figure(
            name=f"history.{label}.stats-by-{by}-{days}d", value=1e3 * took_s, unit="ms", floor=floor, rounds=TIMES
        )
    database.close()
    yield _process(label, url)


def _process(label: str, url: str) -> Figure:
    """Measure how long a user waits for the newest jobs."""
    with tempfile.TemporaryDirectory(prefix="gq-bench-") as state:
        environ = clean_environ(state) | {"GPUQUEUE_STATE_DIR": state, "GPUQUEUE_DATABASE_URL": url}
        return beside_click(f"history.{label}.process", [GPUQUEUE, "history"], partial(quiet, environ=environ))


def _slug(text: str) -> str:
    return "-".join(text.replace(",", " ").replace("(", " ").replace(")", " ").split())


def explain(url: str, query: HistoryQuery) -> None:
    """Print the query plan of the page."""
    engine = open_engine(url)
    statements: list[tuple[str, Any]] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *call: statements.append((call[2], call[3])))
    with reading(engine) as connection:
        filters.page(connection, query)
        asked = [each for each in statements if "FROM jobs" in each[0] and "LIMIT" in each[0]]
        words = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN ANALYZE"
        for statement, parameters in asked:
            for row in connection.exec_driver_sql(f"{words} {statement}", parameters):
                print("           ", row[-1])
    engine.dispose()


def main() -> None:
    """Measure SQLite, and PostgreSQL where there is one."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", type=how_many, default=1_000_000)
    arguments.add_argument("--plans", action="store_true", help="show how what is slow was found")
    arguments.add_argument("--only", choices=["sqlite", "postgresql"])
    arguments.add_argument("--sqlite", metavar="PATH", help="keep the history there, and use the one that is there")
    arguments.add_argument("--postgres-url", type=postgres_url, help="default: a private server")
    chosen = arguments.parse_args()
    report(
        figures(count=chosen.jobs, only=chosen.only, path=chosen.sqlite, url=chosen.postgres_url, plans=chosen.plans)
    )


if __name__ == "__main__":
    main()
