"""Tests of the deadline in front of a backend whose calls may hang."""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator

import pytest
from bounded import until

from gpuqueue.model.device import Device, DeviceKind, Health, Reading
from workers.devices import deadline
from workers.devices.backend import DeviceTrouble
from workers.devices.deadline import Deadlined

FIRST, SECOND = (
    Device(uuid=f"GPU-{index}", index=index, name="one", kind=DeviceKind.GPU, total_bytes=10) for index in range(2)
)
#: Deadlines in seconds: long enough on a busy machine, and short for a call that must time out.
PATIENT_S, HASTY_S = 30.0, 0.05


class Hanging:
    """A backend whose calls for a device hang while the device's gate is closed."""

    def __init__(self) -> None:
        self.gates: dict[str, threading.Event] = defaultdict(threading.Event)
        self.asked: Counter[str] = Counter()
        self.threads: set[int] = set()
        for device in (FIRST, SECOND):
            self.gates[device.uuid].set()

    def count(self) -> int:
        """Return the number of cards."""
        return 2

    def card(self, index: int) -> tuple[Device, ...]:
        """Hang while the gate is closed, then return the device of this card."""
        device = (FIRST, SECOND)[index]
        self.gates[device.uuid].wait()
        return (device,)

    def reading(self, device: Device) -> Reading:
        """Hang while the gate is closed, then return a reading."""
        self.asked[device.uuid] += 1
        self.threads.add(threading.get_ident())
        self.gates[device.uuid].wait()
        return Reading(total_bytes=10, free_bytes=4)

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the used bytes for each pid."""
        return reading.used_bytes * len(pids)

    def health(self, device: Device) -> Health:
        """Raise `DeviceTrouble`."""
        self.asked["health"] += 1
        raise DeviceTrouble(f"{device.uuid} is lost")

    def distance(self, a: Device, b: Device) -> int | None:
        """Return a distance."""
        self.asked["distance"] += 1
        return 10 * abs(a.index - b.index)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    """Return a hanging backend, and open every gate at the end."""
    made = Hanging()
    yield made
    for admission in made.gates.values():
        admission.set()


def stuck(hanging: Hanging, deadlined: Deadlined, device: Device = FIRST) -> None:
    """Make a call that does not return within the deadline."""
    hanging.gates[device.uuid].clear()
    with pytest.raises(DeviceTrouble, match=rf"GPU {device.index} has not answered for {HASTY_S:g} s"):
        deadlined.reading(device)


def test_answers_and_troubles_come_through(hanging: Hanging) -> None:
    """Answers and errors of the backend pass through unchanged."""
    deadlined = Deadlined(hanging, deadline_s=PATIENT_S)
    assert (FIRST, SECOND) == deadlined.devices()
    assert 12 == deadlined.used_by(deadlined.reading(FIRST), [1, 2])
    assert 10 == deadlined.distance(FIRST, SECOND)
    with pytest.raises(DeviceTrouble, match="GPU-0 is lost"):
        deadlined.health(FIRST)


@pytest.mark.parametrize(("pauses_s", "calls"), [((0.0, 3600.0), 2), ((0.0, 0.0), 4)])
def test_a_device_that_fails_again_is_asked_at_intervals(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch, pauses_s: tuple[float, ...], calls: int
) -> None:
    """During the pause each call fails at once with the words of the last failure. Other devices are asked."""
    monkeypatch.setattr(deadline, "PAUSES_S", pauses_s)
    deadlined = Deadlined(hanging, deadline_s=PATIENT_S)
    for _ in range(4):
        with pytest.raises(DeviceTrouble, match="GPU-0 is lost"):
            deadlined.health(FIRST)
    assert calls == hanging.asked["health"]
    assert 4 == deadlined.reading(SECOND).free_bytes


def test_a_device_keeps_its_one_thread(hanging: Hanging) -> None:
    """All calls for a device run in the same thread. Another device has another thread."""
    deadlined = Deadlined(hanging, deadline_s=PATIENT_S)
    for _ in range(5):
        deadlined.reading(FIRST)
    assert 1 == len(hanging.threads)
    deadlined.reading(SECOND)
    assert 2 == len(hanging.threads)
    assert threading.get_ident() not in hanging.threads


def test_a_stuck_device_fails_at_once_and_piles_nothing_up(hanging: Hanging) -> None:
    """After one timeout a device is stale: further calls fail at once without a call or a thread.

    Other devices still work.
    """
    deadlined = Deadlined(hanging, deadline_s=HASTY_S)
    stuck(hanging, deadlined)
    threads = threading.active_count()
    for question in (deadlined.reading, deadlined.health, deadlined.reading):
        with pytest.raises(DeviceTrouble, match=r"GPU 0 is stale since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"):
            question(FIRST)
    assert (1, threads) == (hanging.asked[FIRST.uuid], threading.active_count())
    assert 4 == until(lambda: free_bytes(deadlined, SECOND))


def free_bytes(deadlined: Deadlined, device: Device) -> int | None:
    """Return the free bytes, or None if a busy machine missed the short deadline."""
    try:
        return deadlined.reading(device).free_bytes
    except DeviceTrouble:
        return None


def test_a_device_that_comes_back_is_asked_again(hanging: Hanging) -> None:
    """After the hanging call returns, calls for the device work again."""
    deadlined = Deadlined(hanging, deadline_s=HASTY_S)
    stuck(hanging, deadlined)
    hanging.gates[FIRST.uuid].set()
    assert 4 == until(lambda: free_bytes(deadlined, FIRST))


def test_what_waited_behind_a_stuck_call_is_not_asked_later(hanging: Hanging) -> None:
    """A call whose caller has given up is dropped. It is not made when the device works again."""
    deadlined = Deadlined(hanging, deadline_s=HASTY_S)
    hanging.gates[FIRST.uuid].clear()
    both = [threading.Thread(target=free_bytes, args=(deadlined, FIRST)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    hanging.gates[FIRST.uuid].set()
    before = hanging.asked[FIRST.uuid]
    assert 1 == before
    assert 4 == until(lambda: free_bytes(deadlined, FIRST))


def test_distances_are_not_asked_of_a_stuck_device(hanging: Hanging) -> None:
    """No distance is queried for a stale device, because that call would block the thread for distances."""
    deadlined = Deadlined(hanging, deadline_s=HASTY_S)
    stuck(hanging, deadlined, SECOND)
    with pytest.raises(DeviceTrouble, match="GPU 1 is stale"):
        deadlined.distance(FIRST, SECOND)
    assert 0 == hanging.asked["distance"]


def test_a_forked_child_starts_its_own_threads(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child starts its own threads, because threads do not survive a fork.

    A hanging call of the parent does not affect the child.
    """
    deadlined = Deadlined(hanging, deadline_s=HASTY_S)
    stuck(hanging, deadlined)
    hanging.gates[FIRST.uuid].set()
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    assert 4 == until(lambda: free_bytes(deadlined, FIRST))
    assert 2 <= len(hanging.threads)
