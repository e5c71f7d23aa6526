from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from outbox import Outbox, second
from run_logs import shared
from site_of_one import Site

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.audit import AuditQuery, entry_of
from gpuqueue.model.caller import ALL_SCOPES, Caller, Via
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system.delivered_layout import FAILED, RESULTS
from gpuqueue.text.units import MIB
from workers.run.deliveries import DIRECTORY
from workers.run.directory import Held, RunDir
from workers.services.prune import ROUND_S, HistoryPruner, Pruner

DAY_S = 86400.0
WITH_CONSTANT = Path(__file__).parents[3] / "support" / "with_constant.py"


class MovedClock:
    """A clock that a test sets. The wall clock can also be moved alone."""

    def __init__(self) -> None:
        self.wall = datetime.now(timezone.utc)
        self.passed_s = 0.0

    def now(self) -> datetime:
        """Return the wall-clock time."""
        return self.wall

    def monotonic_s(self) -> float:
        """Return the seconds that have passed."""
        return self.passed_s

    def move(self, s: float) -> None:
        """Let *s* seconds pass."""
        self.wall += timedelta(seconds=s)
        self.passed_s += s


@pytest.fixture
def clock() -> MovedClock:
    """Return a clock at the present moment."""
    return MovedClock()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of a site that keeps its logs for 30 days."""
    found = Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path / "state"), "GPUQUEUE_CONFIG": os.devnull})
    assert 30 * DAY_S == found.keep_logs_s
    return found


def run_of(settings: Settings, job_id: int, *, settled: bool = True) -> RunDir:
    """Create the directory of a run with a log."""
    held = Held(job_id=job_id, token=f"1.{job_id:012}", devices=(RunDevice(uuid="GPU-0", lease_bytes=1),))
    directory = RunDir.create(settings.runs_dir, held)
    directory.log.write_text("words\n")
    if settled:
        directory.settle()
    return directory


def rounds(pruner: Pruner, clock: MovedClock) -> int:
    """Let the pruner make two rounds, an hour apart, and return the number of deleted logs."""
    never = threading.Event()
    first = pruner.round(never)
    clock.move(ROUND_S)
    return first + pruner.round(never)


def test_a_log_goes_when_its_time_is_over_and_its_directory_with_it(settings: Settings, clock: MovedClock) -> None:
    """A log and its directory are deleted 30 days after the end of the run, and not before."""
    run_of(settings, 1)
    clock.move(29 * DAY_S)
    assert 0 == rounds(Pruner(settings, clock), clock)

    clock.move(1 * DAY_S)
    assert 1 == rounds(Pruner(settings, clock), clock)
    assert ["live"] == [entry.name for entry in settings.runs_dir.iterdir()]


def test_a_log_that_a_process_still_writes_is_emptied_and_counts(settings: Settings, clock: MovedClock) -> None:
    """Removed, it would take room that nobody sees. It goes when it is closed; a second name of it is empty."""
    directory = shared(run_of(settings, 1))
    directory.note_user("ann")
    (directory.path / "log.times").write_text("1.0 6\n")
    clock.move(31 * DAY_S)
    pruner = Pruner(settings, clock)
    old = directory.path.stat().st_mtime
    with directory.log.open("ab"):
        assert 0 == rounds(pruner, clock)
        assert (0, {"log", "user"}) == (directory.log.stat().st_size, {path.name for path in directory.path.iterdir()})
        assert old == directory.path.stat().st_mtime
    os.link(directory.log, settings.state_dir / "second")

    assert 1 == rounds(pruner, clock)
    assert not directory.path.exists()
    assert b"" == (settings.state_dir / "second").read_bytes()


def test_the_copy_of_the_code_goes_with_the_log(settings: Settings, clock: MovedClock) -> None:
    """The submitter may still write into it, so it does not outlive the log, even if keep_code is longer."""
    directory = run_of(settings, 1)
    (directory.code / "tree").mkdir(parents=True)
    clock.move(31 * DAY_S)

    rounds(Pruner(replace(settings, keep_code_s=None), clock), clock)
    assert not directory.code.exists()


def test_a_live_run_keeps_its_log_however_old_it_is(settings: Settings, clock: MovedClock) -> None:
    """The log of a live run is never deleted, even after 60 days without output."""
    live = run_of(settings, 1, settled=False)
    clock.move(60 * DAY_S)

    assert 0 == rounds(Pruner(settings, clock), clock)
    assert live.log.exists()


def test_a_run_that_has_just_ended_keeps_the_old_log(settings: Settings, clock: MovedClock) -> None:
    """The age of a log counts from the end of its run, not from its last line."""
    directory = run_of(settings, 1, settled=False)
    old = clock.wall.timestamp() - 60 * DAY_S
    os.utime(directory.log, (old, old))
    directory.settle()

    assert 0 == rounds(Pruner(settings, clock), clock)
    assert directory.log.exists()


def test_no_link_is_followed_and_nothing_of_the_job_is_touched(settings: Settings, clock: MovedClock) -> None:
    """Pruning follows no link and deletes no other file of the job.

    A job can write anything into its run directory, including links to files that are not its own.
    """
    precious = settings.state_dir / "precious"
    (precious / "1.abc").mkdir(parents=True)
    for place in (precious / "log", precious / "1.abc" / "log"):
        place.write_text("precious")
    a_link, results, elsewhere = (run_of(settings, job_id) for job_id in (1, 2, 3))
    a_link.log.unlink()
    a_link.log.symlink_to(precious / "log")
    (results.path / "model.pt").write_text("weights")
    (elsewhere.path.parent / "1.link").symlink_to(precious)
    (settings.runs_dir / "4").symlink_to(precious)
    (settings.runs_dir / "notes").mkdir()
    clock.move(60 * DAY_S)

    assert 3 == rounds(Pruner(settings, clock), clock)
    assert {"precious"} == {place.read_text() for place in precious.rglob("log")}
    assert 2 == len(list(precious.rglob("log")))
    assert "weights" == (results.path / "model.pt").read_text()
    assert {"live", "2", "3", "4", "notes"} == {entry.name for entry in settings.runs_dir.iterdir()}


@pytest.mark.parametrize("name", [RESULTS, FAILED])
def test_results_go_when_their_time_is_over(settings: Settings, clock: MovedClock, name: str) -> None:
    """Packed results outlive the log by their own time; then they and the directory go. The time of the run stays."""
    directory = run_of(settings, 1)
    kept = directory.path / name
    kept.touch()
    later = clock.wall.timestamp() + 10 * DAY_S
    os.utime(kept, (later, later))
    settled = directory.path.stat().st_mtime
    clock.move(31 * DAY_S)
    assert 1 == rounds(Pruner(settings, clock), clock)
    assert [name] == [each.name for each in directory.path.iterdir()]
    os.utime(directory.path, (settled, settled))  # the deletion of the log has changed it

    clock.move(10 * DAY_S)
    pruner = Pruner(settings, clock)
    rounds(pruner, clock)
    assert ([], settled) == ([*directory.path.iterdir()], directory.path.stat().st_mtime)
    clock.move(ROUND_S)
    pruner.round(threading.Event())
    assert ["live"] == [entry.name for entry in settings.runs_dir.iterdir()]


def test_nothing_goes_that_is_still_to_be_delivered(settings: Settings, clock: MovedClock) -> None:
    """The logs, the copy of the code and the packed results stay as long as a delivery is pending, or the run."""
    delivered, pending, running = (run_of(settings, job_id, settled=job_id < 3) for job_id in (1, 2, 3))
    for each in (delivered, pending, running):
        (each.path / "code" / "tree").mkdir(parents=True)
        (each.path / RESULTS).touch()
    (settings.state_dir / DIRECTORY).mkdir()
    (settings.state_dir / DIRECTORY / f"2.{pending.token}").touch()
    clock.move(60 * DAY_S)

    assert 1 == rounds(Pruner(settings, clock), clock)

    assert [] == [*delivered.path.iterdir()]
    assert {"log", "code", RESULTS} == {each.name for each in pending.path.iterdir()}
    assert {"log", "code", RESULTS} <= {each.name for each in running.path.iterdir()}


@pytest.mark.parametrize("jump_s", [365 * DAY_S, -365 * DAY_S])
def test_a_clock_that_jumped_costs_no_log(settings: Settings, clock: MovedClock, jump_s: float) -> None:
    """A round during which the wall clock jumped deletes nothing.

    Here the clock is set a year off by mistake, and then set right again.
    """
    run_of(settings, 1)
    pruner, never = Pruner(settings, clock), threading.Event()
    pruner.round(never)
    clock.move(ROUND_S)
    clock.wall += timedelta(seconds=jump_s)
    assert 0 == pruner.round(never)
    clock.wall -= timedelta(seconds=jump_s)
    clock.move(ROUND_S)
    assert 0 == pruner.round(never)


def test_logs_may_be_kept_for_ever(settings: Settings, clock: MovedClock) -> None:
    """With GPUQUEUE_KEEP_LOGS=none, no log is deleted."""
    for_ever = Settings.load({"GPUQUEUE_STATE_DIR": str(settings.state_dir), "GPUQUEUE_KEEP_LOGS": "none"})
    run_of(settings, 1)
    clock.move(3650 * DAY_S)

    assert 0 == rounds(Pruner(for_ever, clock), clock)


def test_one_of_many_workers_prunes(settings: Settings, clock: MovedClock) -> None:
    """Only one worker of a host prunes. The other workers do not wait for it."""
    run_of(settings, 1)
    clock.move(60 * DAY_S)
    pruner = Pruner(settings, clock)

    with pruner._alone() as alone:
        assert (True, 0) == (alone, rounds(Pruner(settings, clock), clock))
    clock.move(ROUND_S)
    assert 1 == pruner.round(threading.Event()) + rounds(pruner, clock)


@pytest.mark.full
def test_a_worker_prunes_and_logs_says_so_in_one_line(site: Site) -> None:
    """A real worker deletes the log of an ended job, and `logs` reports that in one line."""
    site.environ["GPUQUEUE_KEEP_LOGS"] = "1s"
    site.start_recorder()
    worker = site.start_worker()
    job = site.queue.requests.submit(make_spec(argv=("echo", "hello"), mem_bytes=MIB))
    path = site.until_recorded(job.id).runs[-1].log_path
    assert path is not None
    assert "hello\n" == site.cli("logs", str(job.id)).stdout
    site.end(worker)

    command = [
        sys.executable,
        str(WITH_CONSTANT),
        "workers.services.prune:ROUND_S=0.2",
        "run",
        "--device",
        "0",
        "--plain",
    ]
    site.spawn_command(command)
    until(lambda: not Path(path).exists(), what="the log is deleted")

    for words in (("logs",), ("logs", "-f")):
        done = site.cli(*words, str(job.id), check=False)
        assert (5, "") == (done.returncode, done.stdout)
        kept = f"{path}; logs are kept for 1.0s (GPUQUEUE_KEEP_LOGS)"
        assert f"gpuqueue: the log of job {job.id} is not there any more: {kept}\n" == done.stderr


@pytest.mark.parametrize(("keep", "gone"), [("30d", 1), ("31d", 0), ("none", 0)])
def test_environments_go_when_their_time_is_over(
    database: HistoryDatabase, clock: MovedClock, keep: str, gone: int
) -> None:
    """The environment of a job is removed the set time after its end, unless the clock has jumped."""
    site = Settings.load({"GPUQUEUE_KEEP_ENVIRONMENTS": keep, "GPUQUEUE_CONFIG": os.devnull})
    outbox = Outbox(database)
    outbox.submit(1)
    outbox.submit(2)
    outbox.claim(1)
    outbox.started(1)
    outbox.finish(1, Ending.from_status(0), JobState.SUCCEEDED)
    outbox.record()
    clock.wall = second(outbox.number) + timedelta(days=30)
    pruner, never = HistoryPruner(site, clock, database, JobQueue(site.redis_url)), threading.Event()

    assert 0 == pruner.round(never)
    clock.wall += timedelta(seconds=ROUND_S)  # the clock is set
    assert 0 == pruner.round(never)
    clock.move(ROUND_S)
    assert gone == pruner.round(never)

    assert [not gone, True] == [database.kept_environment(each) is not None for each in (1, 2)]


@pytest.mark.parametrize(("keep", "left"), [("365d", ["new"]), ("366d", ["new", "old"]), ("none", ["new", "old"])])
def test_audit_entries_go_when_their_time_is_over(
    database: HistoryDatabase, clock: MovedClock, keep: str, left: list[str]
) -> None:
    """An entry of the audit log is removed the set time after its change, and a younger one stays."""
    site = Settings.load({"GPUQUEUE_KEEP_AUDIT": keep, "GPUQUEUE_CONFIG": os.devnull})
    caller = Caller(account="ada", uid=1001, via=Via.SOCKET, scopes=ALL_SCOPES)
    ages = {"old": timedelta(days=365, minutes=1), "new": timedelta(days=364)}
    database.write_audit(
        [entry_of(caller, name, entry_id=name, at=clock.wall - age, jobs=(), detail={}) for name, age in ages.items()]
    )
    pruner, never = HistoryPruner(site, clock, database, JobQueue(site.redis_url)), threading.Event()
    pruner.round(never)
    clock.move(ROUND_S)

    assert len(ages) - len(left) == pruner.round(never)
    assert left == [each.action for each in database.audit_entries(AuditQuery())]


def test_what_cannot_be_deleted_keeps_nothing_else_from_its_end(
    settings: Settings, database: HistoryDatabase, clock: MovedClock
) -> None:
    """An error of the disk ends neither the round nor the thread, which nobody would start again."""
    settings.delivered_dir.parent.mkdir(parents=True, exist_ok=True)
    settings.delivered_dir.touch()  # where a directory should be
    caller, at = Caller(account="ada", uid=1001, via=Via.SOCKET, scopes=ALL_SCOPES), clock.wall - timedelta(days=400)
    database.write_audit([entry_of(caller, "old", entry_id="old", at=at, jobs=(), detail={})])
    pruner, never = HistoryPruner(settings, clock, database, JobQueue(settings.redis_url)), threading.Event()
    pruner.round(never)
    clock.move(ROUND_S)

    assert 1 == pruner.round(never)
    assert [] == database.audit_entries(AuditQuery())
