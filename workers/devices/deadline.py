"""A time limit for every driver call. A failing GPU can block a call for ever, and Python cannot interrupt the call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from gpuqueue.model.device import Device, Health, Reading, Utilisation
from gpuqueue.system.timed_call import CallFailed, TimedCall
from workers.devices.backend import DeviceBackend, DeviceTrouble

_Answer = TypeVar("_Answer")

DEADLINE_S = 5.0


class Deadlined:
    """A backend that forwards each call to another backend, with a time limit and one thread for each device.

    A call that does not return blocks only its own thread, and then raises DeviceTrouble. Until it returns, all calls
    for its device fail at once. The list of devices and the distances have one thread each, because these calls involve
    several devices.
    """

    def __init__(self, backend: DeviceBackend, *, deadline_s: float = DEADLINE_S) -> None:
        self._backend = backend
        self._deadline_s = deadline_s
        self._made_by = os.getpid()
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}

    def devices(self) -> tuple[Device, ...]:
        """Return the backend's answer in time."""
        return self._lane("the driver, asked for its devices,").ask(self._deadline_s, self._backend.devices)

    def reading(self, device: Device) -> Reading:
        """Return the backend's answer in time."""
        return self._lane(device.uuid).ask(self._deadline_s, self._backend.reading, device)

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the backend's answer. No time limit: this calls no driver."""
        return self._backend.used_by(reading, pids)

    def health(self, device: Device) -> Health:
        """Return the backend's answer in time."""
        return self._lane(device.uuid).ask(self._deadline_s, self._backend.health, device)

    def utilisations(self, device: Device) -> Mapping[int, Utilisation] | None:
        """Return the backend's answer in time."""
        return self._lane(device.uuid).ask(self._deadline_s, self._backend.utilisations, device)

    def accounted(self, device: Device, pids: Collection[int]) -> Mapping[int, int]:
        """Return the backend's answer in time."""
        return self._lane(device.uuid).ask(self._deadline_s, self._backend.accounted, device, pids)

    def distance(self, a: Device, b: Device) -> int | None:
        """Return the backend's answer in time. A stuck device is not asked."""
        for device in (a, b):
            self._lane(device.uuid).fail_if_stuck()
        return self._lane("the driver, asked for distances,").ask(self._deadline_s, self._backend.distance, a, b)

    def _lane(self, name: str) -> _Lane:
        """Return the lane for *name*, and start it at its first call."""
        if self._made_by != os.getpid():
            # Threads do not survive a fork, and another thread may have held the lock during the fork.
            self._lanes, self._lock, self._made_by = {}, threading.Lock(), os.getpid()
        with self._lock:
            if name not in self._lanes:
                self._lanes[name] = _Lane(name)
            return self._lanes[name]


class _Lane:
    """One daemon thread that makes one call after the other. A stuck call does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        #: The first call that did not return in time, and when it was made.
        self._stuck: tuple[TimedCall[Any], datetime] | None = None
        threading.Thread(target=self._serve, name=f"asks {name}", daemon=True).start()

    def ask(self, deadline_s: float, question: Callable[..., _Answer], *args: object) -> _Answer:
        """Return what *question* returns within *deadline_s* seconds."""
        self.fail_if_stuck()
        call = TimedCall(partial(question, *args), deadline_s, self._calls.put)
        try:
            return call.wait()
        except CallFailed:
            if self._stuck is None or self._stuck[0].done:
                self._stuck = call, datetime.now(timezone.utc) - timedelta(seconds=deadline_s)
            raise DeviceTrouble(f"{self._name} has not answered for {deadline_s:g} s") from None

    def fail_if_stuck(self) -> None:
        """Return if no call is stuck."""
        if self._stuck is not None and not self._stuck[0].done:
            since = f"{self._stuck[1]:%Y-%m-%d %H:%M:%S} UTC"
            raise DeviceTrouble(f"{self._name} is stale since {since}: a call never returned")

    def _serve(self) -> None:
        """Make the queued calls one after the other, for ever."""
        while True:
            self._calls.get()()
