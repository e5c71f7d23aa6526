"""A time limit for every driver call. A failing GPU can block a call for ever, and Python cannot interrupt the call."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from gpuqueue.model.device import Device, Health, Reading, Utilisation
from gpuqueue.system.timed_call import CallFailed, TimedCall
from workers.devices.backend import CardBackend, DeviceTrouble

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)

DEADLINE_S = 5.0
#: How long a card that fails is not asked again, in seconds, by its number of failures in a row.
PAUSES_S = (0.0, 0.0, 0.0, 1.0, 2.0, 5.0, 10.0, 30.0)


class Deadlined:
    """A backend that forwards each call to a driver, with a time limit and one thread for each card.

    A call that does not return blocks only its own thread, and then raises DeviceTrouble. Until it returns, all calls
    for its card fail at once. A card that fails again and again is asked at growing intervals. The number of cards and
    the distances have one thread each, because these calls involve several cards.

    *cards* are the indexes of the cards to serve, None for all. *known* are devices that an earlier process has seen.
    """

    def __init__(
        self,
        backend: CardBackend,
        *,
        host: str = "",
        cards: Collection[int] | None = None,
        known: Collection[Device] = (),
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._backend = backend
        self._host = host
        self._cards = cards
        #: The last known devices. Those of a silent card stay in it.
        self._known = tuple(known)
        self._deadline_s = deadline_s
        self._made_by = os.getpid()
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}

    def devices(self) -> tuple[Device, ...]:
        """Return the devices in the order of their index. All cards are asked at the same time, each with its limit.

        The devices of a card that does not answer stay in the list. If none is known, the card itself is in the list as
        a device without a size, which takes no job.

        Raises:
            DeviceTrouble: no card answers, and no device is known.

        """
        if self._cards is None:
            count = self._lane("the driver, asked for its cards,").begin(self._deadline_s, self._backend.count)()
        cards = sorted(range(count) if self._cards is None else self._cards)
        answers = {card: self._lane_of(card).begin(self._deadline_s, self._backend.card, card) for card in cards}
        answering: list[Device] = []
        silent: dict[int, DeviceTrouble] = {}
        for card, answer in answers.items():
            try:
                answering += answer()
            except DeviceTrouble as trouble:
                silent[card] = trouble
        uuids = {device.uuid for device in answering}
        remembered = [each for each in self._known if each.card in silent and each.uuid not in uuids]
        self._known = (*answering, *remembered)
        if silent and not self._known:
            raise next(iter(silent.values()))
        for card, why in silent.items():
            _log.warning("GPU %d does not answer: %s", card, why)
        unknown = silent.keys() - {device.card for device in remembered}
        found = (*self._known, *(Device.unidentified(card, self._host) for card in unknown))
        return tuple(sorted(found, key=lambda device: device.index))

    def reading(self, device: Device) -> Reading:
        """Return the backend's answer in time."""
        return self._ask(device, self._backend.reading, device)

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the backend's answer. No time limit: this calls no driver."""
        return self._backend.used_by(reading, pids)

    def health(self, device: Device) -> Health:
        """Return the backend's answer in time."""
        return self._ask(device, self._backend.health, device)

    def utilisations(self, device: Device) -> Mapping[int, Utilisation] | None:
        """Return the backend's answer in time."""
        return self._ask(device, self._backend.utilisations, device)

    def accounted(self, device: Device, pids: Collection[int]) -> Mapping[int, int]:
        """Return the backend's answer in time."""
        return self._ask(device, self._backend.accounted, device, pids)

    def distance(self, a: Device, b: Device) -> int | None:
        """Return the backend's answer in time. A card that is not asked now fails at once."""
        for device in (a, b):
            self._lane_of(device.card).fail_if_closed()
        lane = self._lane("the driver, asked for distances,")
        return lane.begin(self._deadline_s, self._backend.distance, a, b)()

    def _ask(self, device: Device, question: Callable[..., _Answer], *args: object) -> _Answer:
        lane = self._lane_of(device.card)
        if device.is_unidentified:
            lane.begin(self._deadline_s, self._backend.card, device.card)()
            raise DeviceTrouble("it answers again: it is served soon")
        return lane.begin(self._deadline_s, question, *args)()

    def _lane_of(self, card: int) -> _Lane:
        return self._lane(f"GPU {card}")

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
        #: The number of failures in a row, what the last one was, and when the next call is due.
        self._failures, self._trouble, self._again_s = 0, "", 0.0
        threading.Thread(target=self._serve, name=f"asks {name}", daemon=True).start()

    def begin(self, deadline_s: float, question: Callable[..., _Answer], *args: object) -> Callable[[], _Answer]:
        """Make the call *question*, and return a function that returns its answer within *deadline_s* from now.

        The function raises DeviceTrouble if the call fails or takes longer, and if the lane is closed.
        """
        try:
            self.fail_if_closed()
        except DeviceTrouble as trouble:
            return partial(_fail, str(trouble))
        call = TimedCall(partial(question, *args), deadline_s, self._calls.put)
        return partial(self._answer, call, deadline_s)

    def _answer(self, call: TimedCall[_Answer], deadline_s: float) -> _Answer:
        try:
            answer = call.wait()
        except CallFailed:
            if self._stuck is None or self._stuck[0].done:
                self._stuck = call, datetime.now(timezone.utc) - timedelta(seconds=deadline_s)
            raise self._failed(f"{self._name} has not answered for {deadline_s:g} s") from None
        except DeviceTrouble as trouble:
            self._failed(str(trouble))
            raise
        self._failures = 0
        return answer

    def _failed(self, why: str) -> DeviceTrouble:
        """Note that a call has failed, and return the error that says *why*."""
        self._again_s = time.monotonic() + PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures, self._trouble = self._failures + 1, why
        return DeviceTrouble(why)

    def fail_if_closed(self) -> None:
        """Return if no call is stuck, and none has failed just now."""
        if self._stuck is not None and not self._stuck[0].done:
            since = f"{self._stuck[1]:%Y-%m-%d %H:%M:%S} UTC"
            raise DeviceTrouble(f"{self._name} is stale since {since}: a call never returned")
        if self._failures and time.monotonic() < self._again_s:
            raise DeviceTrouble(self._trouble)

    def _serve(self) -> None:
        """Make the queued calls one after the other, for ever."""
        while True:
            self._calls.get()()


def _fail(words: str) -> Any:
    raise DeviceTrouble(words)
