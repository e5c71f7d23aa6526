"""The times at which a tick can change something. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Container


class Moments:
    """Times in seconds, earliest first. Those of a job matter only while it is in *waiting*."""

    def __init__(self, waiting: Container[int]) -> None:
        self._waiting = waiting
        self._heap: list[tuple[float, int]] = []

    def add(self, moment_s: float, job_id: int = 0) -> None:
        """Add a time. If *job_id* is not 0, the time belongs to that job."""
        heapq.heappush(self._heap, (moment_s, job_id))

    def first_s(self) -> float:
        """Return the earliest time; infinity if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def pass_until(self, now_s: float) -> bool:
        """Remove the times up to *now_s*; return whether one of them matters."""
        matters = False
        while self.first_s() <= now_s:
            _, job_id = heapq.heappop(self._heap)
            matters = matters or not job_id or job_id in self._waiting
        return matters
