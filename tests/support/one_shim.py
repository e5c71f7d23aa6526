"""A real shim over a real run directory, without a worker."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.model.run import RunDevice
from gpuqueue.system.process import ProcessIdentity
from workers.run import process_tree
from workers.run.directory import Exit, Held, RunDir, ShimSpec
from workers.run.environment import TOKEN
from workers.shim.client import Shim as Started
from workers.shim.client import Shims

#: The token of the runs here. The sweep searches the whole host for it, so tests that run at the same time need
#: different tokens, or they end each other's jobs.
RUN_TOKEN = f"1.{os.getpid():x}"


class Process:
    """The process of a forked shim, with the interface of :class:`subprocess.Popen`."""

    def __init__(self, started: Started) -> None:
        self.pid = started.pid
        self._started = started
        self._identity = ProcessIdentity.of(started.pid)
        self._code: int | None = None
        self._over = False

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit code once the process has ended, None if it was killed."""
        poll = select.poll()
        poll.register(self._started.handle, select.POLLIN)
        if not self._over and not poll.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired("the shim", timeout or 0.0)
        if not self._over:
            self._over, self._code = True, self._started.code()
        return self._code

    def poll(self) -> int | None:
        """Return the exit code if the process has ended, else None."""
        try:
            return self.wait(timeout=0)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._identity is not None:
            self._identity.send(signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._started.handle)
        self._started.close()


class Shim:
    """A real shim over a real run directory, started as a worker starts it."""

    def __init__(
        self,
        runs: Path,
        argv: list[str],
        *,
        renew_s: float = 60.0,
        before: Callable[[], object] = lambda: None,
        by: Shims,
        entered: bool = False,
        job_id: int = 1,
        **changes: Any,
    ) -> None:
        held = Held(job_id=job_id, token=RUN_TOKEN, devices=(RunDevice(uuid="GPU-0", lease_bytes=1),))
        self.directory = RunDir.create(runs, held, entered=entered)
        lock = self.directory.try_lock()
        assert lock is not None
        spec: dict[str, Any] = {
            "argv": tuple(argv),
            "cwd": "/",
            "env": {"PATH": os.environ["PATH"], TOKEN: held.token, "PYTHONUNBUFFERED": "1"},
            "time_limit_s": None,
            "kill_grace_s": 1.0,
            "start_before": time.monotonic() + 60,
            "umask": 0o022,
        }
        self.directory.write_spec(ShimSpec(**{**spec, **changes}))
        self.directory.renew(time.monotonic() + renew_s)
        before()
        path = self.directory.path
        self.process = Process(by.start(path, lock))
        os.close(lock)

    def ended(self) -> Exit:
        """Wait for the end and return the shim's exit record."""
        assert 0 == self.process.wait(timeout=30)
        end = self.directory.exit()
        assert end is not None
        return end

    def log(self) -> str:
        """Return the job's output so far."""
        return self.directory.log.read_text(errors="surrogateescape") if self.directory.log.exists() else ""


@pytest.fixture
def shims(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts shims; all their leftovers are swept after the test."""
    started: list[Shim] = []
    forkserver = Shims()

    def start(*argv: str, runs: Path | None = None, **changes: Any) -> Shim:
        started.append(Shim(runs or tmp_path / f"runs{len(started)}", list(argv), by=forkserver, **changes))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        each.process.close()
        each.directory.close()
    forkserver.close()
    process_tree.sweep(TOKEN, RUN_TOKEN)
