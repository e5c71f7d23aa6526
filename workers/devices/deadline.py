"""A deadline for every question: a dying GPU can keep a call for ever, and nothing in Python takes it back."""

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
    """Asks another backend, each device in a thread of its own, and waits for none of them for ever.

    A call that does not come back keeps its thread and no other; until it does, all questions about its device fail
    at once. The lists of devices and the distances have a thread each as well, because those calls touch several.
    """

    def __init__(self, backend: DeviceBackend, *, deadline_s: float = DEADLINE_S) -> None:
        self._backend = backend
        self._deadline_s = deadline_s
        self._made_by = os.getpid()
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}

    def devices(self) -> tuple[Device, ...]:
        """Return what the backend says.

        Raises:
            DeviceTrouble: the backend says so, or does not come back.

        """
        return self._lane("the driver, asked for its devices,").ask(self._deadline_s, self._backend.devices)

    def reading(self, device: Device) -> Reading:
        """Return what the backend says.

        Raises:
            DeviceTrouble: the backend says so, or does not come back.

        """
        return self._lane(device.uuid).ask(self._deadline_s, self._backend.reading, device)

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return what the backend says; this asks no driver."""
        return self._backend.used_by(reading, pids)

    def health(self, device: Device) -> Health:
        """Return what the backend says.

        Raises:
            DeviceTrouble: the backend says so, or does not come back.

        """
        return self._lane(device.uuid).ask(self._deadline_s, self._backend.health, device)

    def accounted(self, device: Device, pids: Collection[int]) -> Mapping[int, int]:
        """Return what the backend says.

        Raises:
            DeviceTrouble: the backend says so, or does not come back.

        """
        return self._lane(device.uuid).ask(self._deadline_s, self._backend.accounted, device, pids)

    def distance(self, a: Device, b: Device) -> int | None:
        """Return what the backend says.

        Raises:
            DeviceTrouble: the backend says so, or does not come back.

        """
        for device in (a, b):
            self._lane(device.uuid).check()
        return self._lane("the driver, asked for distances,").ask(self._deadline_s, self._backend.distance, a, b)

    def _lane(self, name: str) -> _Lane:
        """Return the thread for *name*, started at its first question."""
        if self._made_by != os.getpid():
            # Threads do not survive a fork, and the lock may have been held in its middle.
            self._lanes, self._lock, self._made_by = {}, threading.Lock(), os.getpid()
        lane = self._lanes.get(name)
        if lane is None:
            with self._lock:
                lane = self._lanes.get(name)
                if lane is None:
                    lane = self._lanes[name] = _Lane(name)
        return lane


class _Call:
    """One question on its way."""

    __slots__ = ("answer", "asked_at", "back", "error", "given_up", "question")

    def __init__(self, question: Callable[[], object]) -> None:
        self.question = question
        self.asked_at = datetime.now(timezone.utc)
        self.answer: Any = None
        self.error: BaseException | None = None
        self.given_up = False
        # A bare lock is the cheapest way to wait for one thing, with a limit, that Python has.
        self.back = threading.Lock()
        self.back.acquire()


class _Lane:
    """One thread that asks one question after the other; a daemon, or a stuck one would keep the process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._lock = threading.Lock()
        self._stuck: _Call | None = None
        threading.Thread(target=self._serve, name=f"asks {name}", daemon=True).start()

    def ask(self, deadline_s: float, question: Callable[..., _Answer], *args: object) -> _Answer:
        """Return what *question* answers within *deadline_s*.

        Raises:
            DeviceTrouble: it does not come back, or an earlier one has not come back yet.

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
        """Return when the next question has a chance.

        Raises:
            DeviceTrouble: an earlier one has not come back yet.

        """
        stuck = self._stuck
        if stuck is not None:
            raise DeviceTrouble(
                f"{self._name} is stale since {stuck.asked_at:%Y-%m-%d %H:%M:%S} UTC: a call never returned"
            )

    def _give_up(self, call: _Call, deadline_s: float) -> None:
        """Return when *call* came back in the last moment after all.

        Raises:
            DeviceTrouble: it did not.

        """
        with self._lock:
            if call.back.acquire(blocking=False):
                return
            call.given_up = True
            self._stuck = self._stuck or call
        raise DeviceTrouble(f"{self._name} has not answered for {deadline_s:g} s")

    def _serve(self) -> None:
        """Ask what comes, one after the other, for ever."""
        while True:
            call = self._calls.get()
            if not call.given_up:
                try:
                    call.answer = call.question()
                except BaseException as error:  # noqa: BLE001 - it belongs to the one who asked
                    call.error = error
            with self._lock:
                self._stuck = None
                call.back.release()
