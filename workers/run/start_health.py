"""Checks whether this host can start a run: disk space for its directory, a descriptor, a process.

A host that cannot start runs releases jobs faster than other hosts can run them. So after one failure the device takes
no job, and reports the reason, until a trial start without a job succeeds.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from gpuqueue.clock import Clock
from workers.shim import launched

#: The first words of a device's trouble if the host is short of a resource for a start.
NO_START = "no run can begin"
#: Time from a failure to the first trial start, in seconds. It doubles with each further failure of a run to begin.
PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
#: Approximate size of a run directory before the job writes anything, in bytes.
ROOM_BYTES = 64 * 1024


class StartHealth:
    """The result of the latest starts on one host. Thread-safe."""

    def __init__(self, runs: Path, clock: Clock, launcher: str | None = None) -> None:
        self._runs = runs
        self._launcher = launcher
        self._clock = clock
        self._lock = threading.Lock()
        self._why: str | None = None
        self._failures = 0
        self._due_s = 0.0

    def failed(self, why: str) -> None:
        """Record that a run could not begin, because the host was short of a resource."""
        with self._lock:
            self._why = why
            self._due_s = self._clock.monotonic_s() + min(PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
            self._failures += 1

    def run_began(self) -> None:
        """Record that a run has begun."""
        with self._lock:
            self._failures = 0

    def trouble(self) -> str | None:
        """Return why no run can begin now, or None. Make a trial start if the pause after a failure is over."""
        with self._lock:
            if self._why is not None and self._clock.monotonic_s() >= self._due_s:
                try:
                    try_out(self._runs, self._launcher)
                except OSError as error:
                    self._why = in_words(error)
                    self._due_s = self._clock.monotonic_s() + PAUSE_S
                else:
                    self._why = None
            return self._why


def in_words(error: Exception) -> str:
    """Return the reason for a failed start, as text for users."""
    return f"{NO_START}: {getattr(error, 'strerror', None) or error}"


def try_out(runs: Path, launcher: str | None = None) -> None:
    """Do the steps of a start without a job: create a directory, write to disk, start a process, greet the launcher.

    Raises:
        OSError: A step fails, so a start would fail for the same reason.

    """
    directory = runs / f".try-{secrets.token_hex(6)}"
    directory.mkdir(parents=True, mode=0o700)
    try:
        with (directory / "room").open("wb") as file:
            file.write(bytes(ROOM_BYTES))
            file.flush()
            os.fsync(file.fileno())  # some file systems report only here that they are full
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", ""], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
        )
        if launcher is not None:
            launched.greet(launcher)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
