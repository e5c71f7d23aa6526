"""A real shim over a real run directory, without any worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.run import RunDevice
from workers import tree
from workers.environment import TOKEN
from workers.rundir import Exit, Held, RunDir, ShimSpec
from workers.runner import SHIM


class Shim:
    """A real shim over a real run directory, started as a worker starts it."""

    def __init__(
        self,
        runs: Path,
        argv: list[str],
        *,
        vouch_s: float = 60.0,
        before: Callable[[], object] = lambda: None,
        **changes: Any,
    ) -> None:
        held = Held(job_id=1, token="1.abc", devices=(RunDevice(uuid="GPU-0", lease_bytes=1),))
        self.directory = RunDir.create(runs, held)
        lock = self.directory.try_lock()
        assert lock is not None
        spec: dict[str, Any] = {
            "argv": tuple(argv),
            "cwd": "/",
            "env": {"PATH": os.environ["PATH"], TOKEN: held.token, "PYTHONUNBUFFERED": "1"},
            "time_limit_s": None,
            "kill_grace_s": 1.0,
            "start_before": time.monotonic() + 60,
            "lock_fd": lock,
            "umask": 0o022,
        }
        self.directory.write_spec(ShimSpec(**{**spec, **changes}))
        self.directory.vouch(time.monotonic() + vouch_s)
        before()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", str(SHIM), str(self.directory.path)],
            pass_fds=(lock,),
            start_new_session=True,
        )
        os.close(lock)

    def ended(self) -> Exit:
        """Wait for the end and return what the shim wrote."""
        assert 0 == self.process.wait(timeout=30)
        end = self.directory.exit()
        assert end is not None
        return end

    def log(self) -> str:
        """Return the job's output so far."""
        return self.directory.log.read_text(errors="surrogateescape") if self.directory.log.exists() else ""


@pytest.fixture
def shims(tmp_path: Path) -> Iterator[Any]:
    """Return a way to start shims; whatever they leave is swept away."""
    started: list[Shim] = []

    def start(*argv: str, runs: Path | None = None, **changes: Any) -> Shim:
        started.append(Shim(runs or tmp_path / f"runs{len(started)}", list(argv), **changes))
        return started[-1]

    yield start
    for shim in started:
        shim.process.kill()
        shim.process.wait()
        shim.directory.close()
    tree.sweep(TOKEN, "1.abc")
