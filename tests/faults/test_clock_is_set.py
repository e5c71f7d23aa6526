from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from moved_clock.moved_clock import MovedClock
from site_of_one import Site

from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.model.job import JobState
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import MIB

YEAR_S = 365 * 86400


@pytest.fixture
def clock(tmp_path: Path) -> MovedClock:
    """Return a clock that can be set for real processes."""
    return MovedClock(tmp_path)


@pytest.fixture
def moved(
    clock: MovedClock, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """Return a site of which all processes use that clock: its own store, recorder, workers, shims and jobs."""
    state = tmp_path_factory.mktemp("s")
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(state), "GPUQUEUE_CONFIG": os.devnull})
    store = EmbeddedStore(settings)
    with monkeypatch.context() as patch:
        for name, value in clock.environ.items():
            patch.setenv(name, value)
        store.start()
    site = Site(state, settings.redis_url, **clock.environ, GPUQUEUE_HOST_LOST_AFTER="4s")
    yield site
    site.stop()
    store.stop()


def start(site: Site, tmp_path: Path) -> tuple[int, ProcessIdentity, Path]:
    """Start a job that exits with 3 once a gate file exists; return its id, its process and the gate file."""
    pid, gate = tmp_path / "pid", tmp_path / "gate"
    script = f"echo $$ > {pid}.part; mv {pid}.part {pid}; while [ ! -e {gate} ]; do sleep 0.05; done; exit 3"
    job = site.queue.requests.submit(make_spec(argv=("sh", "-c", script), mem_bytes=MIB))
    identity = ProcessIdentity.of(int(until(lambda: pid.exists() and pid.read_text())))
    assert identity is not None
    return job.id, identity, gate


def renewed_until(site: Site, job_id: int) -> float:
    """Return the deadline, in seconds of the monotonic clock, up to which heartbeats cover the job's run."""
    (heartbeat,) = site.settings.runs_dir.glob(f"{job_id}/*/heartbeat")
    return float(heartbeat.read_text())


def outlive_the_grace(site: Site, job_id: int) -> None:
    """Wait until the run's deadline has moved past the end of its current grace."""
    end = renewed_until(site, job_id) + site.settings.shim_grace_s
    until(lambda: renewed_until(site, job_id) > end, what="a heartbeat renews it")


@pytest.mark.full
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "celery"])
def test_a_wall_clock_that_is_set_ends_no_job(moved: Site, clock: MovedClock, tmp_path: Path, *, plain: bool) -> None:
    """Setting the wall clock ends no job.

    The clock of store, worker, shim and recorder is a year ahead, right again, and a year back, while a job runs.
    """
    moved.start_recorder()
    moved.start_worker(plain=plain)
    job_id, process, gate = start(moved, tmp_path)
    for wrong_by_s in (YEAR_S, 0, -YEAR_S):
        clock.set(wrong_by_s)
        outlive_the_grace(moved, job_id)
        assert process.alive(), moved.log()
        other = moved.queue.requests.submit(make_spec(mem_bytes=MIB))
        assert "exit 0" == str(moved.until_recorded(other.id).runs[-1].ending)
        assert moved.queue.devices.all()[0].seen_s_ago < moved.settings.lease_s
    gate.touch()

    record = moved.until_recorded(job_id)
    assert ("exit 3", 0, 1) == (str(record.runs[-1].ending), record.job.losses, len(record.runs))
    assert 0 < (record.runs[-1].duration_s or 0) < 600


@pytest.mark.full
def test_a_host_that_died_under_a_clock_that_was_ahead_is_found_out(
    moved: Site, clock: MovedClock, tmp_path: Path
) -> None:
    """A host that died while its clock was ahead is detected once the clock is right again.

    Its lease used to end a year later.
    """
    moved.start_recorder()
    clock.set(YEAR_S)
    worker = moved.start_worker()
    job_id, process, _ = start(moved, tmp_path)
    end = renewed_until(moved, job_id)
    until(lambda: renewed_until(moved, job_id) > end, what="a heartbeat")
    (pid_file,) = moved.settings.runs_dir.glob("[0-9]*/*/pid")
    moved.end(worker, signal.SIGKILL)
    os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
    clock.set(0)

    job = moved.until_state(job_id, JobState.QUEUED)
    assert 1 == job.losses
    until(lambda: not process.alive())


@pytest.mark.full
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "celery"])
def test_a_worker_waits_by_the_clock_that_cannot_be_set(
    moved: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, plain: bool
) -> None:
    """A worker's waits use the monotonic clock, so heartbeats go on after the wall clock is set.

    In a Python of conda or uv a worker used to send no heartbeat for as long as the clock had been set back.
    """
    moved.start_recorder()
    monkeypatch.setitem(moved.environ, "DEAF_WAITS", "1")
    moved.start_worker(plain=plain)
    job_id, process, gate = start(moved, tmp_path)
    outlive_the_grace(moved, job_id)
    assert process.alive()
    gate.touch()

    assert "exit 3" == str(moved.until_recorded(job_id).runs[-1].ending)
