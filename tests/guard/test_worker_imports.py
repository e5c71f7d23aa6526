"""What a real worker loads until its first job has ended.

It stays for weeks, one for each device of a host: what it has loaded is memory that the jobs there have not, and what
it loads at its start is waited for at each upgrade.
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

#: What a worker has no use for, each some tens of milliseconds and of megabytes. The book's libraries are for those who
#: read and write it, the screens' for commands, what sends messages for who sends them; torch is its jobs'. One that a
#: worker cannot do without is to be loaded when it is needed; if that is at each start, take it from here and say why.
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
#: With ``--plain`` Celery is none of it either.
CELERYS = frozenset({"amqp", "billiard", "celery", "kombu"})
#: Modules of ours. Measured: 130, with Celery 131.
OURS = Bound(65, 143)
#: As Python tells each import; also one that found nothing.
IMPORTED = re.compile(r"import time: +\d+ \| +\d+ \| +([\w.]+)")


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "celery"])
def test_a_worker_loads_no_more_than_agreed(own_store: OwnStore, tmp_path: Path, *, plain: bool) -> None:
    """All that it needs for a job: what is loaded late counts as well."""
    site = Site(tmp_path / "state", own_store.url)
    try:
        site.start_recorder()
        # Shims and the recorder do not hear it.
        site.environ = uncovered({**site.environ, "PYTHONPROFILEIMPORTTIME": "1"})
        site.start_worker(plain=plain)
        site.until_recorded(site.queue.submit(make_spec(argv=("true",), mem_bytes=MIB)).id)
    finally:
        site.stop()

    modules = set(IMPORTED.findall(site.log()))
    packages = {module.partition(".")[0] for module in modules}
    OURS.hold(sum(module.split(".")[0] in {"gpuqueue", "workers"} for module in modules), "modules of ours in a worker")
    assert set() == packages & (NEVER | CELERYS if plain else NEVER)
    assert plain or "celery" in packages
