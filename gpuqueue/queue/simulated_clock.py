"""The queue under a clock that somebody else sets: a month of it passes in seconds.

The scripts are those of every site. Only ``now_ms`` of the prelude is another: it takes the time from a second key,
which is handed in with each call. No script of a real queue has that text, none of its calls has a second key, and
nothing about the time is kept in the store: there is nothing that a site could be fooled with.
"""

from __future__ import annotations

from collections.abc import Iterable

import redis

from gpuqueue.queue.connect import answering
from gpuqueue.queue.jobqueue import JobQueue, device_words
from gpuqueue.queue.keys import PREFIX
from gpuqueue.queue.lease import Offer
from gpuqueue.queue.scripts import Scripts

#: Everything in the prelude that asks for the time meets this function, since it takes the place of the local one.
CLOCK = "now_ms = function() return tonumber(KEYS[2]) end\n"


class SimulatedClock:
    """What time it is, in milliseconds since 1970."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms


class SimulatedScripts(Scripts):
    """The scripts of one connection, for which it is whatever time *clock* says."""

    def __init__(self, client: redis.Redis, clock: SimulatedClock) -> None:
        super().__init__(client)
        self._time = clock

    def _keys(self) -> list[str]:
        return [PREFIX, str(self._time.now_ms)]

    def _clock(self) -> str:
        return CLOCK


class SimulatedQueue(JobQueue):
    """A queue in a store of its own, for which it is whatever time *clock* says.

    The ids of the outbox's events go on by the store's own clock: they only count.
    """

    def __init__(self, url: str, clock: SimulatedClock) -> None:
        super().__init__(url)
        self._clock = clock
        self._scripts = SimulatedScripts(self._redis, clock)

    def now_ms(self) -> int:
        """Return the simulated time."""
        return self._clock.now_ms

    @answering
    def show(self, offers: Iterable[Offer], *, lease_s: float) -> None:
        """Beat for many devices in one go; what becomes of their runs, nobody asks."""
        for reply in self._scripts.run_each("heartbeat", [device_words(offer, lease_s=lease_s) for offer in offers]):
            if isinstance(reply, redis.RedisError):
                raise reply
