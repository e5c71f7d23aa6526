"""The runs that this worker answers for."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from gpuqueue.job import JobSpec
from workers.meter import Meter
from workers.rundir import Held, RunDir


@dataclass(kw_only=True, slots=True)
class LiveRun:
    """A run from its claim to its settlement. ``spec`` is None for a run that was adopted: it needs no start."""

    held: Held
    directory: RunDir
    since_s: float
    lock_fd: int | None = None
    spec: JobSpec | None = None
    meters: dict[str, Meter] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"job {self.held.job_id} run {self.held.token}"

    def meter(self, uuid: str) -> Meter:
        """Return the meter of the run on the device *uuid*."""
        return self.meters.setdefault(uuid, Meter())

    def lease_bytes(self, uuid: str) -> int:
        """Return what the run was promised on the device *uuid*."""
        return sum(device.lease_bytes for device in self.held.devices if device.uuid == uuid)

    def observed(self) -> dict[str, int]:
        """Return the bytes last seen on each device; 0 before the first look."""
        return {
            device.uuid: self.meters[device.uuid].observed_bytes if device.uuid in self.meters else 0
            for device in self.held.devices
        }


class LiveRuns:
    """All live runs of a worker, by token; shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, LiveRun] = {}
        self._added = threading.Event()

    def add(self, run: LiveRun) -> None:
        """Answer for *run* from now on."""
        with self._lock:
            self._runs[run.held.token] = run
        self._added.set()

    def wait(self, timeout_s: float) -> None:
        """Return after *timeout_s*, or at once when a run is added (or somebody wakes us)."""
        self._added.wait(timeout_s)
        self._added.clear()

    def wake(self) -> None:
        """Let whoever waits go on."""
        self._added.set()

    def remove(self, token: str) -> None:
        """Answer for it no more."""
        with self._lock:
            self._runs.pop(token, None)

    def get(self, token: str) -> LiveRun | None:
        """Return the run with this token, or None."""
        with self._lock:
            return self._runs.get(token)

    def all(self) -> list[LiveRun]:
        """Return the runs as they are now."""
        with self._lock:
            return list(self._runs.values())

    def promised_bytes(self, uuid: str, *, but: LiveRun) -> int:
        """Return what the runs on the device *uuid*, *but* one, were promised and have not taken yet."""
        others = [run for run in self.all() if run is not but]
        return sum(max(0, run.lease_bytes(uuid) - run.observed().get(uuid, 0)) for run in others)

    def __len__(self) -> int:
        with self._lock:
            return len(self._runs)
