"""Tests that bound what a real worker imports until its first job has ended.

One worker for each device of a host runs for weeks. The modules that it has loaded take memory from the jobs, and their
loading delays each upgrade.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from factories import make_spec
from guard.bounds import Bound
from guard.one_life import uncovered
from own_store import OwnStore
from site_of_one import Site

from gpuqueue.text.units import MIB

#: Libraries that a worker does not need. Each takes tens of milliseconds and of megabytes. Only processes that read or
#: write the history need its libraries, only commands need those for screens, only senders need those for
#: notifications, and only jobs need torch. A library that a worker cannot do without must be loaded when it is needed.
#: If that is at each start, remove it from here and say why.
NEVER = frozenset(
    {
        "alembic",
        "apprise",
        "cupy",
        "jax",
        "matplotlib",
        "numpy",
        "pandas",
        "platformdirs",
        "psycopg",
        "requests",
        "rich",
        "scipy",
        "sqlalchemy",
        "sqlite3",
        "tensorflow",
        "textual",
        "torch",
    }
)
#: Libraries that a worker with ``--plain`` does not need either. Only a worker of a host with a service speaks HTTP.
CELERYS = frozenset({"amqp", "billiard", "celery", "http", "kombu"})
#: Modules of gpuqueue. Measured: 185, with Celery 186. Each step of a run has a module of its own.
OURS = Bound(83, 189)
#: Matches Python's report of each import, including those that found nothing.
IMPORTED = re.compile(r"import time: +\d+ \| +\d+ \| +([\w.]+)")


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "celery"])
def test_a_worker_loads_no_more_than_agreed(own_store: OwnStore, tmp_path: Path, *, plain: bool) -> None:
    """A worker loads no more modules than agreed, including those that it loads late, for a job."""
    site = Site(tmp_path / "state", own_store.url)
    try:
        site.start_recorder()
        # Shims and the recorder do not get this variable.
        site.environ = uncovered({**site.environ, "PYTHONPROFILEIMPORTTIME": "1"})
        site.start_worker(plain=plain)
        site.until_recorded(site.queue.requests.submit(make_spec(argv=("true",), mem_bytes=MIB)).id)
    finally:
        site.stop()

    modules = set(IMPORTED.findall(site.log()))
    packages = {module.partition(".")[0] for module in modules}
    OURS.hold(sum(module.split(".")[0] in {"gpuqueue", "workers"} for module in modules), "modules of ours in a worker")
    assert set() == packages & (NEVER | CELERYS if plain else NEVER)
    assert plain or "celery" in packages
