"""The runs that this worker answers for."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuqueue.errors import Unreadable
from gpuqueue.model.device import Reading
from gpuqueue.model.job import JobSpec
from gpuqueue.system.process import ProcessIdentity
from workers.measure.meter import Meter
from workers.measure.neighbours import Neighbours
from workers.measure.timeline import MOST_POINTS
from workers.run.directory import RunDir
from workers.run.values import Held
from workers.threads.steady_clock import SteadyEvent

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class LiveRun:
    """A run from its claim to its settlement. ``spec`` is None for a run that was adopted: it needs no start.

    ``since_s`` is when it was started (or, before that, claimed) on the host's monotonic clock, ``at_once_bytes``
    the most that it was seen to hold on all its devices together.
    """

    held: Held
    directory: RunDir
    since_s: float
    lock_fd: int | None = None
    spec: JobSpec | None = None
    meters: dict[str, Meter] = field(default_factory=dict)
    at_once_bytes: int | None = None
    #: What its owner should know, to be told with the next beat.
    notes: deque[str] = field(default_factory=deque)
    #: Whether a spare was asked to become it, and its shim has not said yet what came of that.
    spare_asked: bool = False
    neighbours: Neighbours = field(init=False)
    _shim: ProcessIdentity | None = None
    #: The sampler, the claimer and the beats all look, each in a thread of its own.
    _noting: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.neighbours = Neighbours(self.held.job_id)

    def __str__(self) -> str:
        return f"job {self.held.job_id} run {self.held.token}"

    @property
    def shim(self) -> ProcessIdentity | None:
        """Return the shim that owns the run, None while it has not said so."""
        if self._shim is None:
            self._shim = self.directory.shim()
        return self._shim

    @property
    def in_excess(self) -> bool:
        """Return whether something speaks for ending the run because it holds too much, and it was not asked yet."""
        return any(meter.excess and not meter.ended for meter in list(self.meters.values()))

    @property
    def was_seen(self) -> bool:
        """Return whether any look at a device has seen the run, or asked for it in vain."""
        return any(meter.samples or meter.na_samples for meter in list(self.meters.values()))

    def has(self, uuid: str) -> bool:
        """Return whether the run holds the device *uuid*."""
        return any(device.uuid == uuid for device in self.held.devices)

    def meter(self, uuid: str) -> Meter:
        """Return the meter of the run on the device *uuid*."""
        meter = self.meters.get(uuid)
        if meter is None:
            meter = self.meters.setdefault(uuid, Meter(MOST_POINTS // len(self.held.devices)))
        return meter

    def note(self, uuid: str, reading: Reading, used_bytes: int | None, pids: frozenset[int], now_s: float) -> None:
        """Take note of one look at the device *uuid*: what the run's processes *pids* hold there."""
        meter = self.meter(uuid)
        with self._noting:
            meter.note(
                used_bytes,
                at_s=now_s - self.since_s,
                # One of ours that ended right after the reading can be asked nothing any more: it is no neighbour.
                shared=bool(reading.processes.keys() - pids - meter.pids),
                device_bytes=reading.used_bytes,
                pids=pids,
            )

    def note_at_once(self, held: Sequence[int | None]) -> None:
        """Take note of what the run holds on each of its devices in one moment; None where nobody can say."""
        known = [each for each in held if each is not None]
        if known and len(known) == len(self.held.devices):
            self.at_once_bytes = max(self.at_once_bytes or 0, sum(known))

    def hear_start(self) -> None:
        """Take note of whether a spare became the run, once its shim has said so."""
        with self._noting:
            start = self.directory.start() if self.spare_asked else None
            if start is not None:
                self.spare_asked = False
                self.notes.append(f"started {start}")

    def taken_notes(self) -> Iterator[str]:
        """Yield what is still to be told of the run, each once."""
        while self.notes:
            yield self.notes.popleft()

    def lease_bytes(self, uuid: str) -> int:
        """Return what the run was promised on the device *uuid*."""
        return sum(device.lease_bytes for device in self.held.devices if device.uuid == uuid)

    def observed(self) -> dict[str, int]:
        """Return the bytes last seen on each device; 0 before the first look."""
        return {
            device.uuid: self.meters[device.uuid].observed_bytes if device.uuid in self.meters else 0
            for device in self.held.devices
        }

    def figures(self) -> dict[str, Any]:
        """Return all figures so far as plain values, for the worker that may have to go on from here."""
        with self._noting:
            devices = {uuid: meter.to_plain() for uuid, meter in self.meters.items()}
        return {"since_s": self.since_s, "at_once_bytes": self.at_once_bytes, "devices": devices}

    def resume(self) -> None:
        """Go on from the *figures* that another worker, perhaps of an older version, has left.

        Where they make no sense the run goes on without them: its peak is that of what is seen from now on.
        """
        try:
            kept = self.directory.meters()
            since_s = kept.number("since_s", self.since_s)
            devices = kept.below("devices", "the figures of a run's devices") if "devices" in kept else kept
            mine = [device.uuid for device in self.held.devices if device.uuid in devices]
            meters = {uuid: Meter.from_plain(devices.plain(uuid)) for uuid in mine}
            at_once_bytes = kept.whole_or_none("at_once_bytes")
        except Unreadable as error:
            log.warning("%s: its figures so far are lost: %s", self, error)
            return
        self.since_s = min(max(0.0, since_s), self.since_s)  # on this host's clock, and never yet to come
        self.at_once_bytes, self.meters = at_once_bytes, meters


class LiveRuns:
    """All live runs of a worker, by token; shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, LiveRun] = {}
        self._told: dict[str, LiveRun] = {}
        self._added = SteadyEvent()

    def add(self, run: LiveRun) -> None:
        """Answer for *run* from now on."""
        with self._lock:
            self._runs[run.held.token] = run
        if run.spec is None:  # else it is still to be started, and there is nothing to see
            self._added.set()

    def wait(self, timeout_s: float) -> bool:
        """Return whether a run was adopted, or somebody wakes us: at once then, and else after *timeout_s*."""
        woken = self._added.wait(timeout_s)
        self._added.clear()
        return woken

    def wake(self) -> None:
        """Let whoever waits go on."""
        self._added.set()

    def remove(self, token: str) -> None:
        """Answer for it no more."""
        with self._lock:
            self._runs.pop(token, None)

    def tell(self, run: LiveRun) -> None:
        """Keep *run*, whose end the store was told, until the book has it."""
        run.spec = None  # should it be told again, it must not be started again
        with self._lock:
            self._told[run.held.token] = run

    def told(self) -> list[LiveRun]:
        """Return the runs whose end the store was told, and the book may not have yet."""
        with self._lock:
            return list(self._told.values())

    def forget(self, token: str) -> None:
        """Keep it no more."""
        with self._lock:
            self._told.pop(token, None)

    def get(self, token: str) -> LiveRun | None:
        """Return the run with this token, or None."""
        with self._lock:
            return self._runs.get(token)

    def all(self) -> list[LiveRun]:
        """Return the runs as they are now."""
        with self._lock:
            return list(self._runs.values())

    def __len__(self) -> int:
        with self._lock:
            return len(self._runs)
