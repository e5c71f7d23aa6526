"""Tests of two recorders that run at once, are killed at random, and lose their database.

The history must be the same as that of one undisturbed recorder.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bounded import until
from breakable_postgres import Breakable, breakable
from factories import make_spec, must_claim, serve
from private_postgres import NoPostgres
from site_of_one import Site

from gpuqueue.errors import HistoryUnreachable
from gpuqueue.history import migrate
from gpuqueue.history.connect import open_engine, reading
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.tables import metadata
from gpuqueue.model.event import Cursor, Event
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from workers.services.recorder import Recorder

WITH_CONSTANT = Path(__file__).parents[1] / "support" / "with_constant.py"
JOBS, BATCH = 150, 4
#: The indices of the moments at which a recorder is killed. At the other moments a recorder is stopped and continued.
KILLS = {3, 6}


def live(queue: JobQueue, count: int) -> None:
    """Run *count* jobs to their end: some exit, some are released or lost first, some are cancelled."""
    serve(queue)
    for number in range(count):
        job_id = queue.requests.submit(make_spec()).id
        if number % 5 == 4:
            queue.jobs.cancel(job_id)
            continue
        if number % 5 == 3:
            assert queue.runs.release_claim(job_id, must_claim(queue).token, "no room")
        if number % 5 == 2:
            queue.runs.lose(job_id, must_claim(queue).token, loss_limit=3, detail="gone")
        token = must_claim(queue).token
        queue.runs.started(job_id, token, lease_s=300, log_path="/l", devices=())
        ended = Ending.from_status(number % 2)
        queue.runs.finish(job_id, token, state=JobState.SUCCEEDED, ending=ended, duration_s=1.0, devices=())


def all_events(queue: JobQueue) -> list[Event]:
    """Return all events of the outbox."""
    found: list[Event] = []
    while some := queue.outbox.events(found[-1].id if found else "0-0"):
        found += some
    return found


def rows(url: str) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of all tables."""
    engine = open_engine(url)
    try:
        with reading(engine) as connection:
            return {
                table.name: [
                    dict(row) for row in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()
                ]
                for table in metadata.sorted_tables
            }
    finally:
        engine.dispose()


def written_by_one(events: list[Event], epoch: str, url: str) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of a history that one recorder writes without any disturbance."""
    migrate.upgrade(url)
    database = HistoryDatabase(url)
    assert database.apply(events, expected=None, epoch=epoch)
    database.close()
    return rows(url)


@pytest.fixture
def postgres() -> Iterator[Breakable]:
    """Return a server that a test may kill.

    Without PostgreSQL the test is skipped, but in CI it fails.
    """
    with ExitStack() as stack:
        try:
            server = stack.enter_context(breakable())
        except NoPostgres as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no PostgreSQL: {error}")
        yield server


@pytest.mark.full
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_killed_at_random(store_url: str, tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    """Recorders killed with SIGKILL in the middle of a batch write each event once.

    SQLite runs inside the recorder and dies with it; the PostgreSQL server is killed as well.
    """
    chance = random.Random(20261121)  # noqa: S311 - only moments are drawn
    url = f"sqlite:///{tmp_path / 'history.db'}"
    server: Breakable | None = None
    if kind == "postgresql":
        server = request.getfixturevalue("postgres")
        assert server is not None
        # A site may trade durability for speed. Even then, events that the recorder trims from the outbox must be on
        # the disk.
        server.server.run("ALTER SYSTEM SET synchronous_commit = off")
        server.server.run("ALTER SYSTEM SET wal_writer_delay = '10s'")
        server.server.run("SELECT pg_reload_conf()")
        url = server.server.url
    migrate.upgrade(url)
    site = Site(tmp_path / "state", store_url, GPUQUEUE_DATABASE_URL=url)
    live(site.queue, JOBS)
    events, epoch = all_events(site.queue), site.queue.epoch()
    assert epoch is not None
    words = [f"workers.services.recorder:BATCH={BATCH}", "workers.services.recorder:PAUSE_S=0.02", "record"]
    database = HistoryDatabase(url)

    def passed(event: Event) -> bool:
        with suppress(HistoryUnreachable):
            cursor = database.cursor()
            return cursor is not None and _place(cursor.last_id) >= _place(event.id)
        return False

    try:
        recorders = [site.spawn_command([sys.executable, str(WITH_CONSTANT), *words]) for _ in range(2)]
        moments = sorted(chance.sample(range(len(events) * 3 // 4), 8))
        for number, moment in enumerate(moments):
            until(lambda moment=moment: passed(events[moment]), what=f"event {moment}", timeout_s=60)
            victim = chance.randrange(2)
            if number not in KILLS:
                recorders[victim].send_signal(signal.SIGSTOP)  # it may have read a batch that the other recorder writes
                with suppress(AssertionError):  # it may also hold the lock that the other recorder waits for
                    until(lambda moment=moment: passed(events[moment + 5 * BATCH]), timeout_s=0.5)
                recorders[victim].send_signal(signal.SIGCONT)
                continue
            site.end(recorders[victim], signal.SIGKILL)
            if server is not None:
                server.kill()
                server.start()
            recorders[victim] = site.spawn_command([sys.executable, str(WITH_CONSTANT), *words])
        until(lambda: site.queue.outbox.backlog() == (0, None), what="an empty outbox", timeout_s=60)
        assert passed(events[-1])
        assert all(recorder.poll() is None for recorder in recorders), site.log()
    finally:
        database.close()
        site.stop()

    assert written_by_one(events, epoch, f"sqlite:///{tmp_path / 'one.db'}") == rows(url)


def _place(event_id: str) -> tuple[int, int]:
    ms, _, number = event_id.partition("-")
    return int(ms), int(number)


@pytest.mark.parametrize("committed", [True, False], ids=["answer lost", "never done"])
def test_an_unknown_outcome_of_a_commit(
    queue: JobQueue, database: HistoryDatabase, history_url: str, tmp_path: Path, *, committed: bool
) -> None:
    """The recorder continues correctly after the database dies during a commit.

    The database may die just before or just after it has committed; the recorder cannot tell which.
    """
    live(queue, 5)
    events, epoch = all_events(queue), queue.epoch()
    assert epoch is not None
    recorder = Recorder(Settings.load({}), queue, database)
    deaths = []

    def die(connection: sa.Connection) -> None:
        if not deaths:
            deaths.append(1)
            if committed:
                connection.connection.driver_connection.execute("COMMIT")
            raise sa.exc.OperationalError("COMMIT", {}, ConnectionError("server closed the connection"))

    sa.event.listen(database._engine, "commit", die)
    with pytest.raises(HistoryUnreachable, match="server closed the connection"):
        recorder.record(0)
    assert (len(events) if not committed else 0, committed) == (_left(queue, database), database.cursor() is not None)

    while recorder.record(0):
        pass

    assert (0, None) == queue.outbox.backlog()
    assert Cursor(epoch=epoch, last_id=events[-1].id) == database.cursor()
    assert written_by_one(events, epoch, f"sqlite:///{tmp_path / 'one.db'}") == rows(history_url)


def _left(queue: JobQueue, database: HistoryDatabase) -> int:
    cursor = database.cursor()
    return len(queue.outbox.events("0-0" if cursor is None else cursor.last_id))
