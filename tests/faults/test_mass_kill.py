"""After a logout, an out-of-memory kill or a reboot took queue and jobs, the next ``up`` says what was lost."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from bounded import until
from own_home import Home

from gpuqueue.embedded import machine as machines
from gpuqueue.embedded.machine import Machine
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from workers.run.directory import Held, RunDir
from workers.run.orphans import killed

GONE = ProcessIdentity(pid=1, started=1, boot="00000000-0000-0000-0000-000000000000")


def all_of(home: Home) -> Iterator[int]:
    """Yield the pids of all processes with this state directory."""
    mark = f"GPUQUEUE_STATE_DIR={home.state}".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def kill_all(home: Home, but: set[int]) -> None:
    """Send SIGKILL to all processes of the queue and of its jobs, but not to *but*, until there are none."""

    def gone() -> bool:
        left = set(all_of(home)) - but - {os.getpid()}
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    until(gone, what="all are gone")


def pids_of(home: Home, job: int) -> set[int]:
    """Return the pids of the shim and the first process of a run."""
    (path,) = until(lambda: list(home.state.glob(f"runs/{job}/*/pid")), what="the shim")
    lines = until(lambda: found if len(found := path.read_text().splitlines()) > 1 else None, what="the process")
    return {int(line.split()[0]) for line in lines}


@pytest.mark.full
def test_up_counts_the_runs_that_were_killed_with_the_queue_and_adopts_the_others(home: Home) -> None:
    """The line is printed once, and not after ``down``."""
    home("up", "--devices", "sim:1x4G")
    jobs = [int(home("submit", "--mem", "1G", "--retries", "0", "--", "sleep", "1000")) for _ in range(3)]
    survivor = [pids_of(home, job) for job in jobs][2]
    kill_all(home, but=survivor)

    up = home("up", "--devices", "sim:1x4G")

    assert re.search(r"\ngpuqueue: 2 runs were killed about \d\d:\d\d, together with the queue\n", f"\n{up}")
    until(lambda: "running" in home("queue"), what="the queue")
    assert 1 == json.loads(home("show", str(jobs[2]), "--json"))["job"]["attempt"]
    assert pids_of(home, jobs[2]) == survivor
    assert "killed" not in home("up")
    home("down", "--cancel-jobs")
    assert "killed" not in home("up", "--devices", "sim:1x4G")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine with a run that was killed in another boot, one that has ended, and one that had not begun."""
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull})
    for number, names in enumerate((("pid",), ("pid", "exit"), ())):
        device = RunDevice(uuid="sim-0", name="sim", lease_bytes=1)
        held = Held(job_id=number + 1, token=f"1.{number}", devices=(device,))
        directory = RunDir.create(settings.runs_dir, held)
        for name in names:
            (directory.path / name).write_text(f"{GONE}\n")
    runs = [{"seen_ms": run.seen_ms, "in_this_boot": run.in_this_boot} for run in killed(settings)]
    monkeypatch.setattr(machines, "_run", lambda *_words: json.dumps(runs))
    return Machine(settings)


def test_a_reboot_after_an_orderly_stop_kills_the_runs_and_not_the_queue(own: Machine) -> None:
    """Its ``up --foreground`` was told to stop, so its file is gone."""
    assert "1 run was killed when this machine went down" == own.killed_runs()


def test_only_a_queue_that_was_not_taken_down_was_killed(own: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that were killed while the queue was down are its own matter, and so are those of a queue that runs."""
    pid_file = own.settings.state_dir / "host.pid"
    pid_file.write_text(f"{GONE}\n")
    assert re.fullmatch(r"1 run was killed about \d\d:\d\d, together with the queue", str(own.killed_runs()))

    monkeypatch.setattr(Machine, "host_running", lambda _machine: ProcessIdentity.of(os.getpid()))
    assert "1 run was killed when this machine went down" == own.killed_runs()
    here = [{"seen_ms": 0, "in_this_boot": True}]
    monkeypatch.setattr(machines, "_run", lambda *_words: json.dumps(here))
    assert own.killed_runs() is None


def test_a_start_without_runs_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that reads the run directories takes a while to start."""
    monkeypatch.setattr(machines, "_run", lambda *_words: pytest.fail("it was called"))

    assert Machine(Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path)})).killed_runs() is None
