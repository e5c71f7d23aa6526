"""Tests of the recorder while the database fails in every known way.

The outbox keeps the events, the log names each failure in one line, and the history is complete and free of duplicates
afterwards.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from bounded import until
from breakable_postgres import Breakable, breakable
from factories import make_spec, must_claim, serve
from link import Link
from private_postgres import NoPostgres
from short_host import fill, own_disk
from site_of_one import Site

from gpuqueue.client import Client
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.history import migrate
from gpuqueue.history.connect import open_engine, writing
from gpuqueue.history.revision import REVISION
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue

WITH_CONSTANT = Path(__file__).parents[1] / "support" / "with_constant.py"
IN_CI = bool(os.environ.get("CI"))
LIMITS = {
    "gpuqueue.history.connect:WAIT_S": 0.3,
    "gpuqueue.history.connect:ANSWER_S": 2.0,
    "gpuqueue.history.connect:PING_S": 2.0,
}
CONSTANTS = ("workers.services.recorder:PAUSE_S=0.05", *(f"{name}={value}" for name, value in LIMITS.items()))

#: A fault: its name, the context manager that breaks and repairs the database, the message expected, and whether the
#: history stays readable meanwhile.
Fault = tuple[str, Callable[[], AbstractContextManager[None]], str, bool]


def life(queue: JobQueue) -> int:
    """Run one job from submit to finish; return its id."""
    job_id = queue.requests.submit(make_spec()).id
    claimed = must_claim(queue)
    assert job_id == claimed.job_id
    assert queue.runs.started(job_id, claimed.token, lease_s=300, log_path="/l", devices=())
    ended = Ending.from_status(0)
    assert queue.runs.finish(job_id, claimed.token, state=JobState.SUCCEEDED, ending=ended, duration_s=1.0, devices=())
    return job_id


def run_sql(url: str, statement: str) -> None:
    """Run *statement* with the recorder's database account."""
    engine = open_engine(url)
    with writing(engine) as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def reported(site: Site) -> list[str]:
    """Return the recorder's warnings without their timestamps."""
    return re.findall(r"WARNING workers\.services\.recorder: (.*)", site.log())


def refused(client: Client, words: str) -> bool:
    """Return whether the history is refused with *words*.

    The helper fails if the history is not refused at all.
    """
    with pytest.raises(HistoryUnreachable) as caught:
        client.history.search()
    return re.search(words, str(caught.value)) is not None


def go_through(site: Site, faults: list[Fault]) -> None:
    """Run one recorder through all *faults*, and run jobs to their end during each fault."""
    serve(site.queue)
    site.spawn_command([sys.executable, str(WITH_CONSTANT), *CONSTANTS, "record"])
    jobs = [life(site.queue)]
    until(lambda: site.queue.outbox.backlog() == (0, None), what="a history that is well")
    for name, broken, words, readable in faults:
        before = len(reported(site))
        with broken():

            def output(words: str = words, before: int = before) -> bool:
                jobs.append(life(site.queue))
                return any(re.search(words, line) for line in reported(site)[before:])

            until(output, what=f"{name}: {words}\n{site.log()[-2000:]}", timeout_s=180)
            assert site.queue.outbox.backlog()[0] >= 4
            with Client(site.settings) as client:
                if readable:
                    assert jobs[0] in [record.job.id for record in client.history.search(limit=1000)]
                else:
                    until(lambda client=client, words=words: refused(client, words), what=f"{name} for a reader")
        until(lambda: site.queue.outbox.backlog() == (0, None), what=f"{name} mended")
        until(lambda: reported(site)[-1] == "the history is recorded again", what=f"{name}: a word that it is well")
        lines = reported(site)[before:]
        assert len(lines) == len(set(lines)), lines
    database = site.client.database
    assert jobs == [record.job.id for record in reversed(site.client.history.search(limit=10_000))]
    for job_id in jobs:
        assert [Act.SUBMIT, Act.CLAIM, Act.STARTED, Act.FINISH] == [event.act for event in database.events(job_id)]
        record = database.get(job_id)
        assert record is not None
        assert (JobState.SUCCEEDED, [Ending.from_status(0)]) == (record.job.state, [run.ending for run in record.runs])


@pytest.mark.full
def test_commands_say_it_in_one_line(site: Site, store_url: str) -> None:
    """Commands that need the history exit with 4 and name the remedy.

    All other commands work without the history.
    """
    assert "is not there yet: run gpuqueue up" in site.cli("status").stdout
    store = connect(store_url)
    store.xadd(keys.OUTBOX, {"act": "told in 1970"}, id="1-1")
    store.close()
    Path(site.settings.database_url.partition(":///")[2]).write_text("no database at all" * 100)
    job_id = int(site.cli("submit", "--mem", "1G", "--device", "any", "--", "true").stdout)

    for words in (("history",), ("show", str(job_id))):
        done = site.cli(*words, check=False)
        (line,) = done.stderr.splitlines()
        assert (4, "") == (done.returncode, done.stdout)
        assert re.search(r"the history database at sqlite:.* is damaged \(.*\): gpuqueue doctor says how", line)
    assert str(job_id) in site.cli("queue").stdout
    assert re.search(
        "history  behind  +2 events wait for the history database, the oldest for .*: see gpuq",
        site.cli("status").stdout,
    )
    assert 2 == json.loads(site.cli("status", "--json").stdout)["unrecorded"]
    site.cli("cancel", str(job_id))
    assert JobState.CANCELLED is site.client.jobs.get(job_id).state


@pytest.mark.full
def test_a_machine_starts_without_its_history(site: Site) -> None:
    """`gpuqueue up` starts the workers without the history, unless the store is new.

    After a reboot the database may start later than gpuqueue, and the GPUs must not wait for it. A new store is rebuilt
    from the history, so there `up` exits with 4.
    """
    Path(site.settings.database_url.partition(":///")[2]).write_text("no database at all" * 100)
    done = site.cli("up")
    try:
        assert "history  away" in done.stdout
        assert "is damaged" in done.stderr
        job_id = int(site.cli("submit", "--mem", "1G", "--device", "any", "--", "true").stdout)
        site.until_state(job_id, JobState.SUCCEEDED)
    finally:
        site.cli("down")
    store = connect(site.settings.redis_url)
    store.flushall()
    store.close()

    done = site.cli("up", check=False)

    assert 4 == done.returncode
    assert "is damaged" in done.stderr
    assert [] == site.queue.devices.all()


# ---- SQLite ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the timeouts of this process to those of the recorder."""
    for name, value in LIMITS.items():
        monkeypatch.setattr(name.replace(":", "."), value)


class File:
    """A history in a SQLite file, and the faults that can happen to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold an open write transaction."""
        other = sqlite3.connect(self.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        yield
        other.close()

    @contextmanager
    def moved(self, instead: str | None = None) -> Iterator[None]:
        """Move the file elsewhere for a while, and optionally put *instead* in its place."""
        away = self.path.with_name("away")
        away.mkdir()
        self._move(self.path.parent, away)
        if instead is not None:
            self.path.write_text(instead)
        yield
        for each in self.path.parent.glob(f"{self.path.name}*"):
            each.unlink()
        self._move(away, self.path.parent)
        away.rmdir()

    def _move(self, source: Path, target: Path) -> None:
        for each in source.glob(f"{self.path.name}*"):
            shutil.move(each, target / each.name)

    @contextmanager
    def of_revision(self, revision: str) -> Iterator[None]:
        """Set the schema version of the file to *revision* for a while."""
        with contextmanager(self._set)(revision):
            yield

    def _set(self, revision: str) -> Iterator[None]:
        for each in (revision, REVISION):
            other = sqlite3.connect(self.path, isolation_level=None, timeout=10)
            other.execute("UPDATE alembic_version SET version_num = ?", [each])
            other.close()
            if each == revision:
                yield


@pytest.mark.full
@pytest.mark.usefixtures("limits")
def test_sqlite(store_url: str, tmp_path: Path) -> None:
    """The recorder survives a SQLite file that is locked, moved, overwritten, of another version, or on a full disk."""
    with own_disk(tmp_path / "disk", options="size=4m") as disk:
        file = File(disk / "history.db")
        migrate.upgrade(f"sqlite:///{file.path}")

        @contextmanager
        def full() -> Iterator[None]:
            filler = fill(disk)
            yield
            filler.unlink()

        site = Site(tmp_path / "state", store_url, GPUQUEUE_DATABASE_URL=f"sqlite:///{file.path}")
        try:
            go_through(
                site,
                [
                    ("locked", file.locked, r"is held by another program \(database is locked\)", True),
                    ("moved", file.moved, "is not there yet: run gpuqueue up", False),
                    ("garbage", lambda: file.moved("no database " * 999), "is damaged .*gpuqueue doctor says", False),
                    ("older", lambda: file.of_revision("0000"), r"older \(0000\) .*: run gpuqueue db upgrade", False),
                    ("newer", lambda: file.of_revision("9999"), r"newer \(9999\) .*: upgrade gpuqueue", False),
                    ("full", full, "cannot be written, its disk is full .*: free some space", True),
                ],
            )
        finally:
            site.stop()


# ---- PostgreSQL ------------------------------------------------------------------------------------------------------


@pytest.fixture
def postgres() -> Iterator[Breakable]:
    """Return a server that a test may break.

    Without PostgreSQL the test is skipped, but in CI it fails.
    """
    opening = breakable()
    try:
        server = opening.__enter__()
    except NoPostgres as error:
        if IN_CI:
            raise
        pytest.skip(f"no PostgreSQL: {error}")
    try:
        yield server
    finally:
        opening.__exit__(None, None, None)


class Away:
    """The faults that can happen to a server and to ``ada``, the account that owns the history."""

    def __init__(self, postgres: Breakable, link: Link) -> None:
        self.postgres, self.link = postgres, link
        self.run = postgres.server.run

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Kill all server processes with SIGKILL."""
        self.postgres.kill()
        yield
        self.postgres.start()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server with SIGSTOP: the kernel still accepts connections and data, but nothing answers."""
        self.postgres.send(signal.SIGSTOP)
        yield
        self.postgres.send(signal.SIGCONT)

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Drop every packet."""
        self.link.cut()
        yield
        self.link.heal()

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """Restart the server in recovery, before it accepts connections."""
        self._as_standby("hot_standby=off", wait=False)
        yield
        self._primary_again()

    @contextmanager
    def standby(self) -> Iterator[None]:
        """Run the server as a read-only standby."""
        self._as_standby()
        yield
        self.postgres.promote()

    def _as_standby(self, *settings: str, wait: bool = True) -> None:
        self.postgres.stop()
        (self.postgres.data / "standby.signal").touch()
        self.postgres.start(*settings, wait=wait)

    def _primary_again(self) -> None:
        self.postgres.kill()
        (self.postgres.data / "standby.signal").unlink()
        self.postgres.start()

    @contextmanager
    def full(self, stack: ExitStack, url: str) -> Iterator[None]:
        """Leave no disk space for the table of events; skip the test if no disk can be mounted."""
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gq-pg-", dir="/tmp")))
        place.chmod(0o755)
        disk = stack.enter_context(own_disk(place / "disk", options="size=4m"))
        self.postgres.own(disk)
        self.run(f"CREATE TABLESPACE small LOCATION '{disk}'")
        self.run("GRANT ALL ON TABLESPACE small TO ada")
        run_sql(url, "ALTER TABLE job_events SET TABLESPACE small")
        stack.callback(self.postgres.kill)  # the server must end before its disk is unmounted
        filler = fill(disk)
        yield
        filler.unlink()

    def refused(self, before: str, after: str) -> Callable[[], AbstractContextManager[None]]:
        """Refuse new connections of ``ada``, and end those that are open."""

        @contextmanager
        def there() -> Iterator[None]:
            self.run(before)
            self.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ada'")
            yield
            self.run(after)

        return there


@pytest.mark.full
@pytest.mark.usefixtures("limits")
def test_postgresql(store_url: str, tmp_path: Path, postgres: Breakable) -> None:
    """The recorder survives every fault of a PostgreSQL server.

    The faults are: killed, stopped, cut off, recovering, standby, no connection left, password changed, disk full.
    """
    run = postgres.server.run
    run("CREATE ROLE ada LOGIN PASSWORD 'right'")
    run("CREATE DATABASE history OWNER ada")
    (postgres.data / "pg_hba.conf").write_text("local all gpuqueue trust\nlocal all ada scram-sha-256")
    run("SELECT pg_reload_conf()")
    link = Link(f"unix://{postgres.socket}")
    url = f"postgresql://ada:right@127.0.0.1:{link.url.rpartition(':')[2]}/history?connect_timeout=2"
    migrate.upgrade(url)
    site = Site(tmp_path / "state", store_url, GPUQUEUE_DATABASE_URL=url)
    away = Away(postgres, link)
    silent = "does not answer: .*bring it back"
    many = away.refused("ALTER ROLE ada CONNECTION LIMIT 0", "ALTER ROLE ada CONNECTION LIMIT -1")
    password = away.refused("ALTER ROLE ada PASSWORD 'new'", "ALTER ROLE ada PASSWORD 'right'")
    with ExitStack() as stack:
        stack.callback(link.close)
        stack.callback(site.stop)
        go_through(
            site,
            [
                ("killed", away.killed, silent, False),
                ("stopped", away.stopped, silent, False),
                ("cut off", away.cut_off, silent, False),
                ("recovering", away.recovering, r"starts or stops just now .*: wait for it", False),
                ("standby", away.standby, "can only be read .*name the primary", True),
                ("many", many, "no connection left", False),
                ("password", password, "does not let this account in .*GPUQUEUE_DATABASE_URL", False),
                ("full", lambda: away.full(stack, url), "cannot be written, its disk is full .*: free", True),
            ],
        )
    assert "right@" not in site.log()
