"""What all tests share: a private store server, a clean environment, one site with everything on it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from factories import make_admin, serve
from site_of_one import Site

from gpuqueue.embedded import server
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.queue import connect as connections
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings

# Who starts all tests in the background of a script has them ignore Ctrl-C, and so would each program that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup: whatever we start shall hear it all the same
    signal.signal(signal.SIGHUP, lambda *_: None)

# `dev.py test --full` tests each server on PATH. Read here, before the environment is wiped.
if other := os.environ.get("STORE_SERVER"):
    server._bundled = lambda: other

# A test machine may stand still for some seconds. A test of a store that does not answer sets its own limit.
connections.COMMAND_TIMEOUT_S = 30.0

# No test is judged by its time: an example takes long on a machine that does other work.
hypothesis.settings.register_profile("gpuqueue", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("gpuqueue")

pytest_plugins = [
    *("history_fixtures", "one_shim", "own_home", "own_store", "private_store", "service_fixtures"),
    "host_deliveries",
    *("submitters", "service_site", "private_machine"),  # in this order, since each imports the one before
]


#: Of the tests that run on SQLite and on PostgreSQL, the quick run takes these on both.
POSTGRES_IN_QUICK = ("tests/contract/test_history.py", "tests/integration/history/test_migrations.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes the transcripts anew."""
    parser.addoption("--renew", action="store_true", help="write what the commands print now into the transcripts")


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``full`` the second half of the tests that run on both databases, but for a few."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        on_postgres = callspec is not None and callspec.params.get("backend") == "postgresql"
        if on_postgres and item.nodeid.partition("::")[0] not in POSTGRES_IN_QUICK:
            item.add_marker("full")


@pytest.fixture(autouse=True)
def _clean_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Wipe every setting of the person who runs the tests."""
    for name in list(os.environ):
        if name.startswith("GPUQUEUE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPUQUEUE_CONFIG", os.devnull)
    monkeypatch.setenv("GPUQUEUE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))  # one for all: fonts are slow


@pytest.fixture(scope="session")
def _server() -> Iterator[Settings]:
    """Run one store server for the whole session, the one that users get."""
    home = Path(tempfile.mkdtemp(prefix="gpuqueue-test-"))
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(home), "GPUQUEUE_CONFIG": os.devnull})
    store = EmbeddedStore(settings)
    store.start()
    yield settings
    store.stop()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def store_url(_server: Settings) -> str:
    """Return the address of a real, empty store."""
    client = connect(_server.redis_url)
    client.flushall()
    client.close()
    return _server.redis_url


@pytest.fixture
def queue(store_url: str) -> Iterator[JobQueue]:
    """Return a queue that was opened and is empty."""
    opened = JobQueue(store_url)
    opened.recovery.open(0)
    yield opened
    opened.close()


@pytest.fixture
def site(store_url: str, tmp_path: Path) -> Iterator[Site]:
    """Return a site with a store and a SQLite history; its processes are gone after the test."""
    made = Site(tmp_path / "state", store_url)
    yield made
    made.stop()


@pytest.fixture
def here(
    queue: JobQueue, store_url: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> JobQueue:
    """Return a queue that the command line uses, with a device that nobody works for."""
    shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "history.db")
    monkeypatch.setenv("GPUQUEUE_REDIS_URL", store_url)
    monkeypatch.setenv("GPUQUEUE_DATABASE_URL", f"sqlite:///{tmp_path / 'history.db'}")
    monkeypatch.setenv("GPUQUEUE_HOST", "nodeA")
    make_admin(queue)
    serve(queue)
    return queue
