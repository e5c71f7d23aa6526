"""Tests of the event that waits on the monotonic clock."""

from __future__ import annotations

import threading
import time

from workers.threads import SteadyEvent


def test_it_is_an_event_like_any_other() -> None:
    """A set event stays set, a cleared event can be waited for again, and a second set has no effect."""
    event = SteadyEvent()
    assert (False, False) == (event.is_set(), event.wait(0.001))
    event.set()
    event.set()
    assert (True, True, True) == (event.is_set(), event.wait(), event.wait(0))
    event.clear()
    event.clear()
    assert (False, False) == (event.is_set(), event.wait(0.001))


def test_a_timeout_is_never_shorter_than_asked_for() -> None:
    """A timeout is never too short. A loop that waits for half a millisecond must not spin."""
    event, before = SteadyEvent(), time.monotonic()

    for _ in range(3):
        event.wait(0.0005)

    assert time.monotonic() - before >= 0.0015


def test_everybody_who_waits_goes_on_when_it_is_set() -> None:
    """Every waiting thread continues when the event is set, with and without a timeout."""
    event, woken = SteadyEvent(), []
    threads = [threading.Thread(target=lambda t=t: woken.append(event.wait(t))) for t in (None, 60.0)]
    for thread in threads:
        thread.start()

    event.set()

    for thread in threads:
        thread.join(timeout=30)
    assert [True, True] == woken
