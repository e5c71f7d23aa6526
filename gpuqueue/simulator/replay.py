"""Replays a trace under a policy: time jumps from one thing that happens to the next. Pure, but for the policy."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol

from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.simulator.trace import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """When and on which devices (by their places in the site) a request ran."""

    request: Request
    cards: tuple[int, ...]
    start_s: float

    @property
    def wait_s(self) -> float:
        """Return how long it waited."""
        return self.start_s - self.request.arrival_s

    @property
    def end_s(self) -> float:
        """Return when it gave its devices back."""
        return round(self.start_s + self.request.run_s, 3)


class Policy(Protocol):
    """Who starts when, and where: that of gpuqueue by its scripts (ours.py), or a rival's (rivals.py)."""

    def arrive(self, request: Request, now_s: float) -> None:
        """A job is submitted."""

    def leave(self, placement: Placement, now_s: float) -> None:
        """A run is over."""

    def start(self, now_s: float) -> list[Placement]:
        """Return what starts now. Asked after each moment at which something happened."""

    def alarm_s(self) -> float | None:
        """Return when it wants to be asked next even though nothing happens; None: not at all."""


def replay(requests: Sequence[Request], policy: Policy) -> list[Placement]:
    """Return where and when each of *requests*, in the order of their arrival, ran under *policy*.

    At one moment runs end first, then jobs arrive, then jobs start. Nothing but the jobs takes time.

    Raises:
        GpuQueueError: the policy let jobs wait for ever beside devices on which nothing runs.

    """
    placed: list[Placement] = []
    ends: list[tuple[float, int, Placement]] = []
    to_come = iter(requests)
    following = next(to_come, None)
    while True:
        moments = [ends[0][0]] if ends else []
        moments += [following.arrival_s] if following else []
        alarm_s = policy.alarm_s()
        moments += [] if alarm_s is None else [alarm_s]
        if not moments:
            break
        now_s = min(moments)
        while ends and ends[0][0] <= now_s:
            policy.leave(heapq.heappop(ends)[2], now_s)
        while following is not None and following.arrival_s <= now_s:
            policy.arrive(following, now_s)
            following = next(to_come, None)
        for placement in policy.start(now_s):
            placed.append(placement)
            heapq.heappush(ends, (placement.end_s, placement.request.number, placement))
    if len(placed) != len(requests):
        raise GpuQueueError(f"{len(requests) - len(placed)} jobs never started: that is a fault of the policy")
    return placed
