from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from bounded import until

from gpuqueue.settings.settings import Settings
from gpuqueue.system import process
from workers.devices.simulated import SimulatedBackend
from workers.run import deliveries
from workers.run.deliveries import Delivery
from workers.services import host as host_module
from workers.services.host import RESTART_PAUSES_S, Child, Host, pause_s


@pytest.mark.parametrize(("failures", "pause"), [(0, 0.2), (1, 1.0), (2, 5.0), (3, 30.0), (99, 30.0)])
def test_a_process_that_ends_again_and_again_is_started_more_and_more_seldom(failures: int, pause: float) -> None:
    """The pause before a restart grows with the failures, here with the default lease of five minutes."""
    assert pause == pytest.approx(pause_s(failures, 0.7 * 300))


def test_no_pause_lasts_as_long_as_the_shims_wait() -> None:
    """A pause is shorter than the shims' grace period.

    Regression: with a lease of 30 s, a worker that had died four times stayed away for 30 s, and its healthy jobs were
    ended.
    """
    grace_s = 0.7 * 30

    assert RESTART_PAUSES_S[-1] > grace_s
    assert grace_s / 2 > pause_s(99, grace_s)


def test_a_killed_process_is_started_again_at_once(tmp_path: Path) -> None:
    """A worker that was killed four times in a row is back within a second, to adopt its runs.

    Regression: each kill counted as a failure, and adoption took 32 s in place of 7.
    """
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull})
    host = Host(settings, SimulatedBackend("here", "1x8G").devices(), "sim:1x8G", record=False)
    child = Child("killed", ["/bin/sh", "-c", "kill -KILL $$"])

    for _ in range(4):
        until(lambda: _started_and_ended(host, child))
        host._supervise(child)

    assert 0 == child.failures
    assert RESTART_PAUSES_S[0] >= child.due_s - time.monotonic()


def _started_and_ended(host: Host, child: Child) -> bool:
    """Start the process once its pause is over, and return whether it has ended."""
    if child.process is None:
        host._supervise(child)
    return child.process is not None and child.process.poll() is not None


def test_a_process_that_cannot_be_started_is_tried_again_within_the_grace(tmp_path: Path) -> None:
    """A failed start is repeated within the grace period.

    Regression: a host that had no free processes for some seconds paused for 30 s, and its healthy jobs were ended.
    """
    settings = Settings.load(
        {
            "GPUQUEUE_STATE_DIR": str(tmp_path),
            "GPUQUEUE_CONFIG": os.devnull,
            "GPUQUEUE_HOST_LOST_AFTER": "30s",
            "GPUQUEUE_HEARTBEAT": "1s",
        }
    )
    host = Host(settings, SimulatedBackend("here", "1x8G").devices(), "sim:1x8G", record=False)
    child = Child("nobody", [str(tmp_path / "no-such-program")], failures=len(RESTART_PAUSES_S))

    host._supervise(child)

    assert child.process is None
    assert settings.shim_grace_s / 2 > child.due_s - time.monotonic()


def test_a_process_that_is_needed_now_and_then_runs_only_then(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The relay of a host without a service is started when a run has files to pack, and ends by itself."""
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull})
    host = Host(settings, SimulatedBackend("here", "1x8G").devices(), "sim:1x8G", record=False)
    (child,) = host._relay
    child.args = ["/bin/sh", "-c", "exit 0"]

    host._supervise(child)
    assert child.process is None
    deliveries.add(settings, Delivery(job_id=1, token="1.a", keep=("*.pt",)))
    until(lambda: _started_and_ended(host, child))
    deliveries.remove(settings, Delivery(job_id=1, token="1.a"))
    host._supervise(child)

    assert child.process is None
    assert 0 == child.failures
    assert [] == caplog.messages


def test_a_worker_that_survives_sigkill_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver call that never returns keeps a worker from ending, and `down` waits for the host process."""
    child = Child("hangs", ["/bin/sleep", "100"], process=subprocess.Popen(["/bin/sleep", "100"]))
    monkeypatch.setattr(host_module, "LEAVE_S", 0.1)
    monkeypatch.setattr(process, "KILLED_S", 0.1)
    kill = subprocess.Popen.kill
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _: None)
    monkeypatch.setattr(subprocess.Popen, "send_signal", lambda *_: None)

    host_module._leave([child])

    assert child.process is not None
    assert child.process.poll() is None
    monkeypatch.undo()
    kill(child.process)
    child.process.wait()
