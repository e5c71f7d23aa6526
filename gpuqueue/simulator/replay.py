"""Replays a trace under a policy, as a discrete-event simulation. Pure, except for the policy."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable
from itertools import pairwise
from typing import Protocol

from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.placement import UNKNOWN_UTILISATION
from gpuqueue.simulator.trace import Request

#: The sum of the utilisations on a device, and the speed of each run there, as a share of its speed alone.
CURVE = ((0.0, 1.0), (0.7, 0.99), (1.1, 0.93), (1.75, 0.74))


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """The start and the devices of a request's run. ``cards`` are positions in ``Site.cards``.

    ``ended_s`` is the end of a run that other runs may have slowed; None while it runs, and if nothing slows runs.
    """

    request: Request
    cards: tuple[int, ...]
    start_s: float
    ended_s: float | None = None

    @property
    def wait_s(self) -> float:
        """Return the wait in seconds."""
        return self.start_s - self.request.arrival_s

    @property
    def end_s(self) -> float:
        """Return the end of the run, in seconds; of a run that has not ended, its end if nothing slows it."""
        return round(self.start_s + self.request.run_s, 3) if self.ended_s is None else self.ended_s

    @property
    def run_s(self) -> float:
        """Return how long the run takes, in seconds."""
        return self.request.run_s if self.ended_s is None else self.ended_s - self.start_s


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


def replay(requests: Iterable[Request], policy: Policy, *, slows: bool = False) -> list[Placement]:
    """Return the placement of each of *requests* under *policy*. *requests* must be in the order of their arrival.

    At one time, runs end first, then jobs arrive, then jobs start. Only the runs of jobs take time. If *slows*, runs
    that share a device slow each other (see :func:`speed`).

    Raises:
        GpuQueueError: the policy did not start all jobs although nothing runs any more.

    """
    ended: dict[int, Placement] = {}
    started: list[int] = []
    runs = Runs(slows=slows)
    arrived = 0
    to_come = iter(requests)
    following = next(to_come, None)
    while True:
        known = (runs.first_end_s(), None if following is None else following.arrival_s, policy.alarm_s())
        now_s = min((each for each in known if each is not None), default=None)
        if now_s is None:
            break
        while (end_s := runs.first_end_s()) is not None and end_s <= now_s:
            placement = runs.end_next()
            ended[placement.request.number] = placement
            policy.leave(placement, now_s)
        while following is not None and following.arrival_s <= now_s:
            policy.arrive(following, now_s)
            arrived += 1
            following = next(to_come, None)
        for placement in policy.start(now_s):
            started.append(placement.request.number)
            runs.start(placement)
    if len(started) != arrived:
        raise GpuQueueError(f"{arrived - len(started)} jobs never started: the policy has a fault")
    return [ended[number] for number in started]


@dataclasses.dataclass(slots=True)
class _Run:
    """A run: the seconds that it would still take alone, as of a time, and its speed since then."""

    placement: Placement
    left_s: float
    at_s: float
    speed: float = 1.0
    #: Counts the changes of its end. Only the newest entry in the heap is valid.
    changes: int = 0


class Runs:
    """The runs that have not ended. If *slows*, runs that share a device slow each other.

    A time limit is stretched like the run: if limits cut the work of slowed runs, a policy that slows them would seem
    to be quick.
    """

    def __init__(self, *, slows: bool) -> None:
        self._slows = slows
        self._runs: dict[int, _Run] = {}
        self._ends: list[tuple[float, int, int]] = []  # end, number of the request, changes
        self._there: dict[int, set[int]] = {}  # device -> the numbers of the requests that run there

    def first_end_s(self) -> float | None:
        """Return when the next run ends if nothing changes before, in seconds; None if nothing runs."""
        while self._ends and not self._is_valid(self._ends[0]):
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def start(self, placement: Placement) -> None:
        """Add a run. It slows those that are on its devices."""
        number = placement.request.number
        self._runs[number] = _Run(placement, left_s=placement.request.run_s, at_s=placement.start_s)
        heapq.heappush(self._ends, (placement.end_s, number, 0))
        if self._slows:
            for card in placement.cards:
                self._there.setdefault(card, set()).add(number)
            self._change(placement.cards, placement.start_s)

    def end_next(self) -> Placement:
        """Remove the run that ends next, and return it with its end. There must be one."""
        end_s = self.first_end_s()
        _, number, _ = heapq.heappop(self._ends)
        placement = self._runs.pop(number).placement
        if end_s is None or not self._slows:
            return placement
        for card in placement.cards:
            self._there[card].discard(number)
        self._change(placement.cards, end_s)
        return dataclasses.replace(placement, ended_s=end_s)

    def _is_valid(self, entry: tuple[float, int, int]) -> bool:
        _, number, changes = entry
        return number in self._runs and self._runs[number].changes == changes

    def _change(self, cards: Iterable[int], now_s: float) -> None:
        """Give each run on *cards* its new speed and end."""
        for number in sorted({number for card in cards for number in self._there[card]}):
            run = self._runs[number]
            now_speed = min(self._speed_on(card) for card in run.placement.cards)
            if now_speed == run.speed:
                continue
            run.left_s = max(0.0, run.left_s - (now_s - run.at_s) * run.speed)
            run.at_s, run.speed, run.changes = now_s, now_speed, run.changes + 1
            heapq.heappush(self._ends, (round(now_s + run.left_s / now_speed, 3), number, run.changes))

    def _speed_on(self, card: int) -> float:
        there = self._there[card]
        return 1.0 if len(there) == 1 else speed(sum(self._use(number) for number in sorted(there)))

    def _use(self, number: int) -> float:
        known = self._runs[number].placement.request.utilisation
        return UNKNOWN_UTILISATION if known is None else known


def speed(total: float) -> float:
    """Return the speed of runs that share a device, as a share of their speed alone.

    *total* is the sum of their utilisations alone: 1.2 for two runs with 60 % each. Measured were 1388 pairs of
    training jobs (Hu et al., "Lucid: A Non-intrusive, Scalable and Interpretable Scheduler for Deep Learning Training
    Jobs", ASPLOS 2023): the mean speed was 0.99 where the sum was 60 to 80 %, 0.93 where it was 100 to 120 %, and 0.74
    where it was 150 to 200 %. What the model adds:

    - **Between** the middles of these ranges the speed is interpolated, and it is 1 at a sum of 0.
    - **Beyond** the last one a device does no more work in total than there: the speed is inverse to the sum.
    - **More than two** runs are as two with the same sum.
    - A run on several devices is as slow as on the slowest of them, because its processes wait for each other.

    Memory bandwidth, caches and the host are not modelled.
    """
    for (low, before), (high, after) in pairwise(CURVE):
        if total <= high:
            return before + (after - before) * (total - low) / (high - low)
    last, at_last = CURVE[-1]
    return last * at_last / total
