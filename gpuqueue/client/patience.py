"""Staying with jobs while the store is away: for an upgrade, a restart, a network that comes back."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuqueue.errors import StoreNotReady, StoreUnreachable, Unreachable

#: What is borne: the jobs go on meanwhile.
ABSENCES = (StoreUnreachable, StoreNotReady)
#: How long an absence is borne, in seconds; and the time between two looks.
BEAR_S, LOOK_S = 600.0, 0.3


class Patience:
    """Bears the store's absences, if it has answered once. *away* is called with the error at the start of each."""

    def __init__(self, away: Callable[[Unreachable], None] | None) -> None:
        self._away = away
        self._answered = False
        self._since: float | None = None

    def answered(self) -> None:
        """Take note that the store is there."""
        self._answered, self._since = True, None

    def bear(self, error: StoreUnreachable | StoreNotReady) -> None:
        """Wait a moment; raise *error* where the store never was there, or has been away for too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if self._answered and self._away is not None:
                self._away(error)
        if not self._answered or now - self._since > BEAR_S:
            raise error
        time.sleep(LOOK_S)
