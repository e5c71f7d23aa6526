"""Tolerates a store or a service that is away for a while: during an upgrade, a restart or a network failure."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuqueue.errors import ServiceUnreachable, StoreNotReady, StoreUnreachable, Unreachable

#: The errors that are tolerated. Jobs continue while the store is unreachable.
ABSENCES = (StoreUnreachable, StoreNotReady, ServiceUnreachable)
#: Longest absence that is tolerated, and the interval between two attempts, in seconds.
BEAR_S, POLL_S = 600.0, 0.3


class Patience:
    """Tolerates absences of a store or service that has answered. Calls *away* with the error when one starts."""

    def __init__(self, away: Callable[[Unreachable], None] | None) -> None:
        self._away = away
        self._answered = False
        self._since: float | None = None

    def answered(self) -> None:
        """Record that the store has answered."""
        self._answered, self._since = True, None

    def bear(self, error: Unreachable) -> None:
        """Sleep before the next attempt; raise *error* if the store never answered or is absent for too long.

        Raises:
            Unreachable: it is *error*.

        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if self._answered and self._away is not None:
                self._away(error)
        if not self._answered or now - self._since > BEAR_S:
            raise error
        time.sleep(POLL_S)
