"""Whether a run could begin on this host at all: room for its directory, a descriptor, a process.

A host that can start nothing gives a job back faster than any other host could run it. So after one failure the
device takes no job, and says why, until a start without any job has succeeded.
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

#: With these words a device says that it is closed for want of something that the host must give.
NO_START = "no run can begin"
#: Time from a failure to the first try, in seconds; it doubles with each job that fails all the same.
PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
#: About what a run directory takes before the job writes anything, in bytes.
ROOM_BYTES = 64 * 1024


class Ground:
    """What the starts on one host came to lately; shared by a worker's threads."""

    def __init__(self, runs: Path, clock: Clock) -> None:
        self._runs = runs
        self._clock = clock
        self._lock = threading.Lock()
        self._why: str | None = None
        self._failures = 0
        self._due_s = 0.0

    def failed(self, why: str) -> None:
        """Take note that a run could not begin for want of something that the host must give."""
        with self._lock:
            self._why = why
            self._due_s = self._clock.monotonic_s() + min(PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
            self._failures += 1

    def held(self) -> None:
        """Take note that a run has begun."""
        with self._lock:
            self._failures = 0

    def trouble(self) -> str | None:
        """Return why no run could begin now, or None. Tries it out once the pause after a failure is over."""
        with self._lock:
            if self._why is not None and self._clock.monotonic_s() >= self._due_s:
                try:
                    try_out(self._runs)
                except OSError as error:
                    self._why = in_words(error)
                    self._due_s = self._clock.monotonic_s() + PAUSE_S
                else:
                    self._why = None
            return self._why


def in_words(error: Exception) -> str:
    """Return what a start failed of, for people."""
    return f"{NO_START}: {getattr(error, 'strerror', None) or error}"


def try_out(runs: Path) -> None:
    """Do all that a start does, without a job.

    Raises:
        OSError: it does not work, for the reason that a start would fail of.

    """
    directory = runs / f".try-{secrets.token_hex(6)}"
    directory.mkdir(parents=True, mode=0o700)
    try:
        with (directory / "room").open("wb") as file:
            file.write(bytes(ROOM_BYTES))
            file.flush()
            os.fsync(file.fileno())  # some file systems notice only then that they are full
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", ""], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
