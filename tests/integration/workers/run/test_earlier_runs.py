"""An old run of a job ends before the next run of the job starts on the same host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import MIB
from workers import runner
from workers.measure.active_runs import LiveRun
from workers.run.directory import Held, RunDir
from workers.runner import end_earlier
from workers.steps.conclusion import Detached, NotStarted
from workers.threads import SteadyEvent

#: Ends only by SIGKILL or once its gate is there, and writes whether the process of an earlier run is alive.
JOB = """trap '' TERM; cd "$1"
if [ -e pid ] && kill -0 "$(cat pid)"; then echo beside >>runs; else echo alone >>runs; fi
echo $$ >pid; while [ ! -e gate ]; do sleep 0.05; done
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return the settings of a host that gives an old run no time to end."""
    return Settings.load(
        {"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_KILL_GRACE": "0.1s"}
    )


def run_of(settings: Settings, token: str) -> LiveRun:
    """Return the locked run of a claimed job."""
    held = Held(job_id=7, token=token, devices=(RunDevice(uuid="GPU-0", lease_bytes=MIB),))
    directory = RunDir.create(settings.runs_dir, held)
    run = LiveRun(held=held, directory=directory, since_s=0.0)
    run.lock_fd = directory.try_lock()
    return run


def is_asked_to_end(run: LiveRun) -> bool:
    """Return whether the run's shim would end the run."""
    return (run.directory.path / "cancel").exists()


def test_the_old_run_ends_before_the_next_one_of_its_job_starts(store_url: str, tmp_path: Path) -> None:
    """Regression: a host that was declared lost claimed the job again before its next heartbeat ended the old run."""
    site = Site(tmp_path / "state", store_url, GPUQUEUE_HEARTBEAT="10s", GPUQUEUE_HOST_LOST_AFTER="90s")
    try:
        site.start_recorder()
        site.start_worker()
        job = site.queue.requests.submit(make_spec(argv=("sh", "-c", JOB, "sh", str(tmp_path)), mem_bytes=MIB)).id
        runs = tmp_path / "runs"
        until((tmp_path / "pid").exists, what="the first run")

        site.queue.devices.lose_host(site.settings.host, by="", loss_limit=3, silent_s=0)

        until(lambda: len(runs.read_text().splitlines()) > 1, what="the second run")
        (tmp_path / "gate").touch()
        assert JobState.SUCCEEDED is site.until_recorded(job).job.state
        assert ["alone", "alone"] == runs.read_text().split()
    finally:
        site.stop()


def test_a_run_does_not_start_beside_one_that_does_not_end(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is excluded for the job, so that the device is free and the job is not claimed there again."""
    monkeypatch.setattr(runner, "KILL_S", 0.1)
    old, new = run_of(settings, "1.aaaa"), run_of(settings, "2.bbbb")

    with pytest.raises(NotStarted, match=r"its earlier run 1\.aaaa here does not end") as refusal:
        end_earlier(new, settings, SteadyEvent())

    assert refusal.value.host_lacks is not None
    assert is_asked_to_end(old)
    assert not is_asked_to_end(new)
    old.close()
    end_earlier(new, settings, SteadyEvent())


def test_a_stale_run_ends_no_newer_one(settings: Settings) -> None:
    """Nor one of the same attempt, which another store may have started."""
    others = [run_of(settings, token) for token in ("2.aaaa", "3.bbbb")]
    end_earlier(run_of(settings, "2.cccc"), settings, SteadyEvent())
    assert [False, False] == [is_asked_to_end(other) for other in others]


def test_an_ended_run_is_left_as_it_is(settings: Settings) -> None:
    """Its worker may still hold the lock while it reports the end."""
    old = run_of(settings, "1.aaaa")
    (old.directory.path / "exit").write_text("{}")
    end_earlier(run_of(settings, "2.bbbb"), settings, SteadyEvent())
    assert not is_asked_to_end(old)


def test_a_worker_that_stops_does_not_wait_for_an_old_run(settings: Settings) -> None:
    """The next worker of the device goes on with the claim."""
    run_of(settings, "1.aaaa")
    stopping = SteadyEvent()
    stopping.set()
    with pytest.raises(Detached):
        end_earlier(run_of(settings, "2.bbbb"), settings, stopping)


def test_a_run_that_is_settled_meanwhile_leaves_no_file(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """To wait for the end of a run is to try its lock, which makes the file anew once another worker has removed it."""
    old, new = run_of(settings, "1.aaaa"), run_of(settings, "2.bbbb")

    def ended_and_settled(directory: RunDir, *_: object) -> bool:
        directory.settle()
        fd = directory.try_lock()
        assert fd is not None
        os.close(fd)
        return True

    monkeypatch.setattr(runner, "end_run", ended_and_settled)
    end_earlier(new, settings, SteadyEvent())

    assert [] == [*old.directory.path.iterdir()]
