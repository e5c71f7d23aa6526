"""The findings of ``gpuqueue-worker doctor`` about unsettled runs, and its repairs of runs that are certainly over."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import TextIOBase
from pathlib import Path
from typing import TextIO

import pytest
from factories import make_spec, must_claim, serve
from site_of_one import BIN, Site

from gpuqueue.doctor.examination import from_line
from gpuqueue.model.finding import Finding, Grade
from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.connect import connect
from workers.doctor.runs import YOUNG_S
from workers.run.directory import Held, RunDir
from workers.run.links import LIVE
from workers.services.recorder import Recorder

#: The text of a run's log, which must never be lost.
LOG = "what the job said\n"


@pytest.fixture(autouse=True)
def _database(site: Site, request: pytest.FixtureRequest) -> None:
    """Give the site a history with tables and no entries."""
    shutil.copy(request.getfixturevalue("migrated_sqlite"), site.settings.state_dir / "history.db")


def make_run(site: Site, job_id: int, token: str, *, age_s: float = 2 * YOUNG_S, device: str = "GPU-0") -> RunDir:
    """Make the directory of a run as a worker does. Its last change was *age_s* ago."""
    held = Held(job_id=job_id, token=token, devices=(RunDevice(uuid=device, lease_bytes=1),))
    directory = RunDir.create(site.settings.runs_dir, held)
    directory.log.write_text(LOG)
    fd = directory.try_lock()
    assert fd is not None
    os.close(fd)
    grow_old(directory, age_s)
    return directory


def grow_old(directory: RunDir, age_s: float = 2 * YOUNG_S) -> None:
    """Set the last change of a run directory to *age_s* ago."""
    changed_s = directory.path.stat().st_mtime - age_s
    os.utime(directory.path, (changed_s, changed_s))


def link_of(site: Site, directory: RunDir) -> Path:
    """Return the path of the link to an unsettled run."""
    return site.settings.runs_dir / LIVE / f"{directory.path.parent.name}.{directory.path.name}"


def everything(site: Site) -> dict[str, str]:
    """Return all paths below the runs directory: files with their text, links with their target."""
    return {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else ""
        for path in sorted(site.settings.runs_dir.rglob("*"))
    }


def ask(site: Site, *words: str) -> list[str]:
    done = subprocess.run(
        [str(BIN / "gpuqueue-worker"), "doctor", *words],
        env=site.environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


def runs(site: Site) -> list[Finding]:
    """Return the findings about the runs."""
    found = [from_line(line) for line in ask(site)]
    return [each for each in found if each is not None and each.section == "runs"]


def bad(site: Site) -> set[tuple[str, Grade, str]]:
    """Return check, grade and subject of each finding that is not healthy."""
    return {(each.check, each.grade, each.about) for each in runs(site) if not each.grade.is_well}


def mended(site: Site) -> list[str]:
    """Make the repairs and return the text of each."""
    lines = [json.loads(line) for line in ask(site, "--fix")]
    return [each["repair"] for each in lines if "repair" in each]


def record(site: Site) -> None:
    """Copy all events from the outbox to the history, as a recorder does."""
    recorder = Recorder(site.settings, site.queue, site.client.database)
    while recorder.record(0):
        pass


def end_in_history(site: Site, job_id: int) -> str:
    """Run a job to its end, record it and let the store delete it. Return the token of its run."""
    serve(site.queue)
    assert job_id == site.queue.requests.submit(make_spec()).id
    token = must_claim(site.queue).token
    devices = (RunDevice(uuid="GPU-0", lease_bytes=1),)
    site.queue.runs.started(job_id, token, lease_s=300, log_path="/log", devices=devices)
    ending = Ending.from_status(0)
    site.queue.runs.finish(job_id, token, state=JobState.SUCCEEDED, ending=ending, duration_s=1.0, devices=devices)
    record(site)
    assert site.queue.jobs.get(job_id) is None
    return token


def test_a_site_without_runs_is_well(site: Site) -> None:
    """A site on which nothing has ever run is healthy."""
    assert set() == bad(site)


@pytest.mark.full
def test_a_link_that_leads_nowhere_is_removed_and_nothing_else(site: Site) -> None:
    """A link to a run directory that a user removed is deleted. Other links and files are left alone."""
    gone, there = make_run(site, 5, "1.aa"), make_run(site, 6, "1.bb")
    for path in sorted(gone.path.iterdir()):
        path.unlink()
    gone.path.rmdir()
    (site.settings.runs_dir / LIVE / "notes.txt").write_text("mine")
    before = everything(site)
    assert ("dangling links", Grade.WARNING, "") in bad(site)

    (output,) = mended(site)

    assert str(link_of(site, gone)) in output
    del before[str(link_of(site, gone))]
    assert before == everything(site)
    assert there.log.read_text() == LOG
    assert "dangling links" not in {check for check, _, _ in bad(site)}
    assert [] == mended(site)


@pytest.mark.full
def test_fix_repairs_both_sides_and_checks_again(site: Site) -> None:
    """``gpuqueue doctor --fix`` makes the repairs of both programs, reports them, and checks again."""
    (make_run(site, 5, "1.aa").path).rename(site.settings.state_dir / "away")
    before = site.cli("doctor", check=False).stdout

    after = site.cli("doctor", "--fix", "--verbose", check=False).stdout

    assert "1 lead nowhere: 5.1.aa" in before
    assert "repair: removed" in after
    assert "dangling links      none" in after
    assert "repair: nothing needed a repair" in site.cli("doctor", "--fix", check=False).stdout


@pytest.mark.full
def test_a_run_that_is_over_for_certain_is_tidied_up(site: Site) -> None:
    """A run is cleaned up, except for its log, if the store does not know the job and the history has its end."""
    token = end_in_history(site, 1)
    stale, other = make_run(site, 1, token), make_run(site, 77, "1.cc")
    kept = {path: text for path, text in everything(site).items() if "/77" in path}
    assert ("stale directories", Grade.WARNING, "") in bad(site)

    (output,) = mended(site)

    assert str(stale.path) in output
    assert [stale.log] == list(stale.path.iterdir())
    assert LOG == stale.log.read_text()
    assert not link_of(site, stale).is_symlink()
    assert kept == {path: text for path, text in everything(site).items() if "/77" in path}
    assert other.held() is not None
    assert "stale directories" not in {check for check, _, _ in bad(site)}


def stale(site: Site) -> RunDir:
    """Return a run that is certainly over."""
    return make_run(site, 1, end_in_history(site, 1))


def held(site: Site) -> TextIO:
    """Let a shim or a worker hold the lock of a run that is over."""
    lock = (stale(site).path / "lock").open("r+")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def young(site: Site) -> None:
    os.utime(stale(site).path)


def without_history(site: Site) -> None:
    stale(site)
    database = site.settings.state_dir / "history.db"
    database.rename(database.with_suffix(".away"))
    database.mkdir()


def without_store(site: Site) -> None:
    stale(site)
    site.environ["GPUQUEUE_REDIS_URL"] = "redis://127.0.0.1:1"


def never_opened(site: Site) -> None:
    stale(site)
    connect(site.settings.redis_url).flushall()


def current(site: Site) -> str:
    """Let a worker hold a run, and return its token."""
    serve(site.queue)
    site.queue.requests.submit(make_spec())
    token = must_claim(site.queue).token
    make_run(site, 1, token)
    return token


def lost_data(site: Site) -> None:
    current(site)
    record(site)
    connect(site.settings.redis_url).flushall()
    site.queue.recovery.open(100_001)


def current_of_another_store(site: Site) -> None:
    end_in_history(site, 1)
    connect(site.settings.redis_url).flushall()
    site.queue.recovery.open(0)
    current(site)


full = pytest.mark.full
UNKNOWN, LEFT = {("unsettled", Grade.UNKNOWN, "job 1")}, {("unsettled", Grade.WARNING, "job 1")}


@pytest.mark.parametrize(
    ("happen", "found"),
    [
        pytest.param(held, {("without a worker", Grade.PROBLEM, "job 1")}, marks=full),
        pytest.param(young, set(), marks=full),  # a worker makes the directory before it takes the lock
        pytest.param(without_history, UNKNOWN, marks=full),  # the end of the run is not certain
        (without_store, UNKNOWN),
        (never_opened, LEFT),  # that such a store does not know the token proves nothing
        pytest.param(lost_data, LEFT, marks=full),  # only its directory says how it ended
        pytest.param(current, LEFT, marks=full),  # its worker will settle it
        (current_of_another_store, LEFT),  # in whose history the id is another job's
    ],
)
def test_a_run_that_may_not_be_over_is_left_alone(
    site: Site, happen: Callable[[Site], object], found: set[tuple[str, Grade, str]]
) -> None:
    """Nothing is removed unless the run is certainly over, by the store and by the history."""
    lock = happen(site)
    before = everything(site)

    assert [] == mended(site)
    assert before == everything(site)
    assert found == bad(site)
    if isinstance(lock, TextIOBase):
        lock.close()


def test_an_unreadable_claim_is_reported(site: Site) -> None:
    """A run with an unreadable claim file is a warning.

    A power cut can truncate the file, and no worker can adopt the run.
    """
    directory = RunDir(site.settings.runs_dir / "1" / current(site))
    (directory.path / "claim").write_text('{"job_id": 1, "tok')
    grow_old(directory)

    (found,) = [each for each in runs(site) if each.check == "unsettled"]

    assert (Grade.WARNING, True) == (found.grade, "nobody can adopt it" in found.seen)


@pytest.mark.full
def test_a_job_without_a_worker_is_reported_with_the_time_left(site: Site) -> None:
    """A running job without a worker is a warning with the time that is left, and is healthy once a worker runs again.

    Without a heartbeat in time the shim ends the job.
    """
    worker = site.start_worker()
    job = site.client.jobs.submit(["sleep", "1000"], mem="1G")
    site.until_state(job.id, JobState.RUNNING)
    assert set() == bad(site)
    site.end(worker, signal.SIGKILL)

    (alone,) = [each for each in runs(site) if each.check == "without a worker"]

    assert (Grade.WARNING, f"job {job.id}", "gpuqueue up") == (alone.grade, alone.about, alone.remedy)
    assert "is ended in" in alone.seen
    site.start_worker()
    assert set() == bad(site)
    site.client.jobs.cancel(job.id)
    site.until_state(job.id, JobState.CANCELLED)


# ---- processes that outlived their run -------------------------------------------------------------------------------


@pytest.fixture
def orphan(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """Return a process with the token of a run whose shim is gone."""
    marks = {"GPUQUEUE_TOKEN": "1.aa", "GPUQUEUE_RUN_DIR": str(site.settings.runs_dir / "9" / "1.aa")}
    process = subprocess.Popen([sys.executable, "-c", "input()"], env={**os.environ, **marks}, stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.full
def test_a_process_that_outlived_its_run_is_found(site: Site, orphan: subprocess.Popen[bytes]) -> None:
    """A process that outlived its shim is a problem with a kill command. Doctor does not kill it without being asked.

    It may hold GPU memory, and no shim will end it.
    """
    (found,) = [each for each in runs(site) if each.check == "orphans"]

    assert (Grade.PROBLEM, f"pid {orphan.pid}") == (found.grade, found.about)
    assert "of job 9" in found.seen
    assert found.remedy.startswith(f"kill -9 {orphan.pid}")
    assert [] == mended(site)
    assert orphan.poll() is None


@pytest.mark.full
def test_a_process_whose_shim_is_there_is_none(site: Site, orphan: subprocess.Popen[bytes]) -> None:
    """A process is no orphan while the lock of its run is held."""
    directory = make_run(site, 9, "1.aa")
    with (directory.path / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        assert "orphans" not in {check for check, _, _ in bad(site)}
    assert orphan.poll() is None


def test_a_process_of_another_queue_is_none_of_ours(site: Site, tmp_path: Path) -> None:
    """A process whose run directory belongs to another queue is no orphan of this queue."""
    marks = {"GPUQUEUE_TOKEN": "1.aa", "GPUQUEUE_RUN_DIR": str(tmp_path / "other" / "runs" / "9" / "1.aa")}
    with subprocess.Popen([sys.executable, "-c", "input()"], env={**os.environ, **marks}, stdin=subprocess.PIPE):
        found = bad(site)

    assert "orphans" not in {check for check, _, _ in found}
