"""Histories for the tests, on SQLite and on a real PostgreSQL. conftest.py names it in ``pytest_plugins``."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from outbox import Outbox
from private_postgres import NoPostgres, Server, any_server
from template_history import template

from gpuqueue.history import migrate, sqlite_reader
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.recovery import open_queue
from gpuqueue.settings.settings import Settings
from workers.services.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuqueue.model.run import Record
    from gpuqueue.queue.jobqueue import JobQueue
    from gpuqueue.recovery import Opened

#: Read at import, before the tests wipe the environment.
IN_CI = bool(os.environ.get("CI"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """Run a private PostgreSQL for the whole session.

    Without PostgreSQL the tests that need it are skipped, but in CI they fail.
    """
    opening = any_server()
    try:
        server = opening.__enter__()
    except NoPostgres as error:
        if IN_CI:
            raise
        pytest.skip(f"no PostgreSQL: {error}")
    yield server
    opening.__exit__(None, None, None)


@pytest.fixture(scope="session")
def _migrated_postgres(postgres_server: Server) -> Iterator[str]:
    """Return the name of a database with gpuqueue's tables, as a template for copies."""
    with postgres_server.database() as url:
        migrate.upgrade(url)
        yield url.partition("?")[0].rpartition("/")[2]


@pytest.fixture(scope="session")
def migrated_sqlite() -> Path:
    """Return a file with gpuqueue's tables, to copy."""
    return template()


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> str:
    """Return the kind of database: a test that uses a database runs once for each kind."""
    kind: str = request.param
    return kind


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, backend: str, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a new database without tables."""
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: Server = request.getfixturevalue("postgres_server")
    with server.database() as url:
        yield url


@pytest.fixture
def history_url(request: pytest.FixtureRequest, backend: str, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a new database with gpuqueue's tables."""
    if backend == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "history.db")
        yield f"sqlite:///{tmp_path / 'history.db'}"
        return
    server: Server = request.getfixturevalue("postgres_server")
    with server.database(request.getfixturevalue("_migrated_postgres")) as url:
        yield url


class BothReaders(HistoryDatabase):
    """A history that reads each job of a SQLite file with both readers, which must agree."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url

    def get(self, job_id: int) -> Record | None:
        """Return the job, after both readers have read it."""
        found = super().get(job_id)
        if self.url.startswith("sqlite:"):
            assert found == sqlite_reader.record(self.url, job_id)
        return found


@pytest.fixture
def database(history_url: str) -> Iterator[HistoryDatabase]:
    """Return an empty history."""
    opened = BothReaders(history_url)
    yield opened
    opened.close()


@pytest.fixture
def outbox(database: HistoryDatabase) -> Outbox:
    """Return an empty outbox for the empty history."""
    return Outbox(database)


class Recorded:
    """A queue and the history that records it. Its store may lose all data."""

    LEASE_S = 300.0

    def __init__(self, queue: JobQueue, database: HistoryDatabase) -> None:
        self.queue, self.database = queue, database
        self.store = connect(queue.url)
        self._recorder = Recorder(Settings.load(), queue, database)

    def record(self) -> None:
        """Record the whole outbox in the history."""
        while self._recorder.record(0):
            pass

    def lose(self) -> None:
        """Delete all data in the store."""
        self.store.flushall()

    def open(self, settings: Settings | None = None) -> Opened | None:
        """Open the store from the history, if it is not open."""
        return open_queue(self.queue, self.database, lease_s=self.LEASE_S, settings=settings)

    def rebuild(self) -> Opened:
        """Lose the data of the store and rebuild it from the history."""
        self.lose()
        opened = self.open()
        assert opened is not None
        return opened

    def end_pause(self) -> None:
        """End the pause after a rebuild, in which nothing is claimed, as if the lease were over."""
        self.store.hset(keys.META, "claims", 0)


@pytest.fixture
def recorded(queue: JobQueue, database: HistoryDatabase) -> Iterator[Recorded]:
    """Return the open queue with an empty history that records it."""
    made = Recorded(queue, database)
    yield made
    made.store.close()
