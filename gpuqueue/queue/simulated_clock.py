"""The queue with a simulated clock, so that a month passes in seconds.

The scripts are those of a real site, except ``now_ms`` of the prelude, and ``SEEN_MS`` if devices send no heartbeats.
The simulated ``now_ms`` takes the time from a second key, which each call passes. The scripts of a real queue do not
contain this text, their calls have no second key, and the store does not save the simulated time. So a simulation
cannot affect a real site.
"""

from __future__ import annotations

from typing import Any, cast

from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect_at_once
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.keys import PREFIX
from gpuqueue.queue.scripts import Scripts
from gpuqueue.queue.store import Store, answering

#: Replaces the local function ``now_ms`` of the prelude, so the prelude and the acts use the simulated time.
CLOCK = "now_ms = function() return tonumber(KEYS[2]) end\n"
#: Added to CLOCK where no device counts as silent: a replay spent a third of its time on heartbeats.
NEVER_SILENT = "SEEN_MS = math.huge\n"


class SimulatedClock:
    """The simulated time, in milliseconds since 1970."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms


class SimulatedScripts(Scripts):
    """The scripts of one connection, which use the time of *clock*."""

    def __init__(self, client: Any, clock: SimulatedClock, changes: str = CLOCK) -> None:
        super().__init__(client)
        self._time = clock
        self._changes = changes

    def _keys(self) -> list[str]:
        return [PREFIX, str(self._time.now_ms)]

    def _clock(self) -> str:
        return self._changes


class SimulatedStore(Store):
    """A store that uses the time of *clock*. The built-in client takes a quarter less time than redis-py."""

    def __init__(self, url: str, clock: SimulatedClock, changes: str = CLOCK) -> None:
        super().__init__(url, by=connect_at_once)
        self._clock = clock
        self.scripts = SimulatedScripts(self.client, clock, changes)

    def now_ms(self) -> int:
        """Return the simulated time, in milliseconds since 1970."""
        return self._clock.now_ms


class SimulatedQueue(JobQueue):
    """A queue in a separate store, which uses the time of *clock*.

    Without *heartbeats*, a device is in service for ever after its first heartbeat. The ids of outbox events still use
    the store's own clock; they only give the order.
    """

    def __init__(self, url: str, clock: SimulatedClock, *, heartbeats: bool = True) -> None:
        super().__init__(url, store=SimulatedStore(url, clock, CLOCK if heartbeats else CLOCK + NEVER_SILENT))

    @answering
    def reservation_texts(self) -> dict[str, str]:
        """Return the store's entry of each reserved device, which changes with everything that the reservation says."""
        return cast("dict[str, str]", self.store.client.hgetall(keys.RESERVED))
