"""Replays a trace under a policy, as a discrete-event simulation. Pure, except for the policy."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol

from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.simulator.trace import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """The start and the devices of a request's run. ``cards`` are positions in ``Site.cards``."""

    request: Request
    cards: tuple[int, ...]
    start_s: float

    @property
    def wait_s(self) -> float:
        """Return the wait in seconds."""
        return self.start_s - self.request.arrival_s

    @property
    def end_s(self) -> float:
        """Return the end of the run, in seconds."""
        return round(self.start_s + self.request.run_s, 3)


class Policy(Protocol):
    """Decides which request starts when and where: gpuqueue's policy (ours.py) or another policy (rivals.py)."""

    def arrive(self, request: Request, now_s: float) -> None:
        """Submit a job."""

    def leave(self, placement: Placement, now_s: float) -> None:
        """End a run."""

    def start(self, now_s: float) -> list[Placement]:
        """Return the runs that start now. Called after all events at one time."""

    def alarm_s(self) -> float | None:
        """Return the time at which :meth:`start` must be called even without an event, or None."""


def replay(requests: Sequence[Request], policy: Policy) -> list[Placement]:
    """Return the placement of each of *requests* under *policy*. *requests* must be in the order of their arrival.

    At one time, runs end first, then jobs arrive, then jobs start. Only the runs of jobs take time.

    Raises:
        GpuQueueError: the policy did not start all jobs although nothing runs any more.

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
        raise GpuQueueError(f"{len(requests) - len(placed)} jobs never started: the policy has a fault")
    return placed
