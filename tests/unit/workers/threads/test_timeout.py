"""Tests of calls that may never return."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from short_host import dead_server

from gpuqueue.clock import SystemClock
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import GIB
from workers import threads, warm_pool
from workers.run import environment
from workers.shim.client import Shims


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Path]:
    """Return a directory that never answers."""
    with dead_server(tmp_path / "dead") as where:
        yield where
    until(lambda: threads._room._value == threads.MAX_CALLS, what="all looks have an end")


def test_what_is_found_and_what_is_raised_comes_back() -> None:
    """Results and exceptions pass through unchanged."""
    assert "here" == threads.in_time(lambda: "here", 30)
    with pytest.raises(FileNotFoundError):
        threads.in_time(Path("/proc/self/nowhere").stat, 30)


def test_who_waits_for_ever_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging call times out, and the number of hanging threads is limited.

    An array makes one call for each of its jobs.
    """
    monkeypatch.setattr(threads, "_room", threading.BoundedSemaphore(2))
    admission = threading.Event()

    assert [None] * 3 == [threads.in_time(admission.wait, 0.01) for _ in range(3)]
    assert threads.in_time(lambda: 1, 30) is None

    admission.set()
    assert 1 == until(lambda: threads.in_time(lambda: 1, 30), what="room again")


def test_a_job_whose_python_does_not_answer_gets_its_environment(dead: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose interpreter hangs gets its environment in time.

    Regression: the worker waited for a dead file server before there was a shim, so neither a cancel nor the time limit
    had an effect.
    """
    monkeypatch.setattr(environment, "ASK_TORCH_LIMIT_S", 0.2)
    card = RunDevice(uuid="GPU-a", lease_bytes=6 * GIB, kind=DeviceKind.GPU, total_bytes=24 * GIB)
    spec = make_spec(mem_bytes=6 * GIB, argv=(str(dead / "bin" / "python"), "train.py"))

    env = environment.environment(1, "1.a", spec, (card,), Path("/r"))

    assert ("0.225586", False) == (env["GPUQUEUE_TORCH_FRACTION"], "PYTORCH_ALLOC_CONF" in env)


def test_a_warm_job_whose_python_does_not_answer_starts_cold(dead: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm job whose interpreter hangs starts cold. Its shim waits for the interpreter, and can be cancelled."""
    monkeypatch.setattr(warm_pool, "POLL_S", 0.2)
    ours = warm_pool.WarmPool(Settings.load({"GPUQUEUE_WARM_MODULES": "json"}), Shims(), SystemClock())
    spec = make_spec(argv=(str(dead / "bin" / "python"), "train.py"))

    assert (None, "its interpreter does not answer") == ours.start(spec, {"PATH": "/bin"}, Path("/r"), -1)
