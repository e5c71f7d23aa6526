"""A time limit for every driver call. A failing GPU can block a call for ever, and Python cannot interrupt the call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timezone
from queue import SimpleQueue
from typing import Any, TypeVar

from gpuqueue.model.device import Device, Health, Reading
from workers.devices.backend import DeviceBackend, DeviceTrouble

_Answer = TypeVar("_Answer")

DEADLINE_S = 5.0


class Deadlined:
    """A backend that forwards each call to another backend, with a time limit and one thread for each device.

    A call that does not return blocks only its own thread. Until it returns, all calls for its device fail at once.
    The list of devices and the distances have one thread each, because these calls involve several devices.
    """

    def __init__(self, backend: DeviceBackend, *, deadline_s: float = DEADLINE_S) -> None:
        self._backend = backend
        self._deadline_s = deadline_s
        self._made_by = os.getpid()
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}

    def devices(self) -> tuple[Device, ...]:
        """Return the backend's answer.

        Raises:
            DeviceTrouble: the backend raises it, or does not answer in time.

        """
        return self._lane("the driver, asked for its devices,").ask(self._deadline_s, self._backend.devices)

    def reading(self, device: Device) -> Reading:
        """Return the backend's answer.

        Raises:
            DeviceTrouble: the backend raises it, or does not answer in time.

        """
        return self._lane(device.uuid).ask(self._deadline_s, self._backend.reading, device)

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the backend's answer. No time limit: this calls no driver."""
        return self._backend.used_by(reading, pids)

    def health(self, device: Device) -> Health:
        """Return the backend's answer.

        Raises:
            DeviceTrouble: the backend raises it, or does not answer in time.

        """
        return self._lane(device.uuid).ask(self._deadline_s, self._backend.health, device)

    def accounted(self, device: Device, pids: Collection[int]) -> Mapping[int, int]:
        """Return the backend's answer.

        Raises:
            DeviceTrouble: the backend raises it, or does not answer in time.

        """
        return self._lane(device.uuid).ask(self._deadline_s, self._backend.accounted, device, pids)

    def distance(self, a: Device, b: Device) -> int | None:
        """Return the backend's answer.

        Raises:
            DeviceTrouble: the backend raises it, or does not answer in time.

        """
        for device in (a, b):
            self._lane(device.uuid).check()
        return self._lane("the driver, asked for distances,").ask(self._deadline_s, self._backend.distance, a, b)

    def _lane(self, name: str) -> _Lane:
        """Return the lane for *name*, and start it at its first call."""
        if self._made_by != os.getpid():
            # Threads do not survive a fork, and another thread may have held the lock during the fork.
            self._lanes, self._lock, self._made_by = {}, threading.Lock(), os.getpid()
        lane = self._lanes.get(name)
        if lane is None:
            with self._lock:
                lane = self._lanes.get(name)
                if lane is None:
                    lane = self._lanes[name] = _Lane(name)
        return lane


class _Call:
    """One pending call."""

    __slots__ = ("answer", "asked_at", "back", "error", "given_up", "question")

    def __init__(self, question: Callable[[], object]) -> None:
        self.question = question
        self.asked_at = datetime.now(timezone.utc)
        self.answer: Any = None
        self.error: BaseException | None = None
        self.given_up = False
        # A plain lock is Python's cheapest way to wait for one event with a timeout.
        self.back = threading.Lock()
        self.back.acquire()


class _Lane:
    """One daemon thread that makes one call after the other. A stuck call does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._lock = threading.Lock()
        self._stuck: _Call | None = None
        threading.Thread(target=self._serve, name=f"asks {name}", daemon=True).start()

    def ask(self, deadline_s: float, question: Callable[..., _Answer], *args: object) -> _Answer:
        """Return what *question* returns within *deadline_s* seconds.

        Raises:
            DeviceTrouble: the call does not return in time, or an earlier call has not returned yet.

        """
        self.check()
        call = _Call(lambda: question(*args))
        self._calls.put(call)
        if not call.back.acquire(timeout=deadline_s):
            self._give_up(call, deadline_s)
        if call.error is not None:
            raise call.error
        answer: _Answer = call.answer
        return answer

    def check(self) -> None:
        """Return if no call is stuck.

        Raises:
            DeviceTrouble: an earlier call has not returned yet.

        """
        stuck = self._stuck
        if stuck is not None:
            raise DeviceTrouble(
                f"{self._name} is stale since {stuck.asked_at:%Y-%m-%d %H:%M:%S} UTC: a call never returned"
            )

    def _give_up(self, call: _Call, deadline_s: float) -> None:
        """Mark *call* as stuck, or return if it has returned in the meantime.

        Raises:
            DeviceTrouble: the call has not returned.

        """
        with self._lock:
            if call.back.acquire(blocking=False):
                return
            call.given_up = True
            self._stuck = self._stuck or call
        raise DeviceTrouble(f"{self._name} has not answered for {deadline_s:g} s")

    def _serve(self) -> None:
        """Make the queued calls one after the other, for ever."""
        while True:
            call = self._calls.get()
            if not call.given_up:
                try:
                    call.answer = call.question()
                except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
                    call.error = error
            with self._lock:
                self._stuck = None
                call.back.release()
