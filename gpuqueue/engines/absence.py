"""Watches for how long an engine has not listed an allocation. Pure."""

from __future__ import annotations

from gpuqueue.engines.engine import ABSENT_S, Ref


class Absences:
    """Since when each allocation was missing in every answer of its engine.

    A restarted scheduler may list nothing for a moment, and one answer that lists the allocation begins the time anew.
    So does a time without answers: nobody knows what they would have listed.
    """

    def __init__(self, absent_s: float = ABSENT_S) -> None:
        self._absent_s = absent_s
        self._since_s: dict[Ref, float] = {}

    def unanswered(self) -> None:
        """Note that the engine did not answer."""
        self._since_s.clear()

    def present(self, ref: Ref) -> None:
        """Note that the engine lists *ref*."""
        self._since_s.pop(ref, None)

    def absent(self, ref: Ref, now_s: float) -> float:
        """Note that the engine does not list *ref* at *now_s* on a monotonic clock; return for how long it has not."""
        return now_s - self._since_s.setdefault(ref, now_s)

    def is_long(self, duration_s: float) -> bool:
        """Return whether an absence of *duration_s* means anything."""
        return duration_s >= self._absent_s
