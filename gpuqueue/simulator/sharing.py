"""Three policies that share devices by memory, for comparison with gpuqueue. Pure.

All of them allocate memory on the first devices with enough of it, several jobs on a device, and consider no users.

- :class:`FirstFit`: each job as soon as it fits, in order of priority and arrival. No reservations.
- :class:`Easy`: as :class:`FirstFit`, but a job may pass the first waiting one only if it does not delay it, as far as
  time limits show (EASY: see rivals.py). A job without a time limit counts as a year.
- :class:`Shortest`: as :class:`FirstFit`, but the shortest run first. It knows how long each job will run, as nobody
  does: a bound for means, not for the longest wait.
"""

from __future__ import annotations

from gpuqueue.simulator.replay import Placement
from gpuqueue.simulator.rivals import InOrder, at_most_s
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request


class Room:
    """The free memory and slots of all devices of a site."""

    def __init__(self, site: Site) -> None:
        self._hosts = site.hosts
        self._free_bytes = [card.usable_bytes for card in site.cards]
        self._slots = [site.slots] * len(site.cards)

    def copy(self) -> Room:
        """Return a copy that changes independently."""
        other = Room.__new__(Room)
        other._hosts = self._hosts  # noqa: SLF001 - of the same class
        other._free_bytes, other._slots = [*self._free_bytes], [*self._slots]  # noqa: SLF001
        return other

    def place(self, request: Request) -> tuple[int, ...] | None:
        """Return the first devices of one host that have room for *request*, or None."""
        for host in self._hosts:
            found = [card for card in host if self._slots[card] and self._free_bytes[card] >= request.mem_bytes]
            if len(found) >= request.gpus:
                return tuple(found[: request.gpus])
        return None

    def change(self, request: Request, cards: tuple[int, ...], sign: int) -> None:
        """Take the room of a run (*sign* 1), or give it back (-1)."""
        for card in cards:
            self._free_bytes[card] -= sign * request.mem_bytes
            self._slots[card] -= sign


class FirstFit(InOrder):
    """Starts every job that fits by memory, in order, with several jobs on a device."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._room = Room(site)

    def leave(self, placement: Placement, now_s: float) -> None:  # noqa: ARG002 - required by the protocol
        """Release the run's memory and slots."""
        self._room.change(placement.request, placement.cards, -1)

    def start(self, now_s: float) -> list[Placement]:
        """Start each waiting job that fits, in order, on the first devices with enough free memory."""
        started: list[Placement] = []
        left: list[Request] = []
        too_large: set[tuple[int, int]] = set()  # stays valid: free memory only decreases in this loop
        for request in self._waiting:
            asked = request.mem_bytes, request.gpus
            cards = None if asked in too_large else self._room.place(request)
            if cards is None:
                too_large.add(asked)
                left.append(request)
            else:
                started.append(Placement(request=request, cards=cards, start_s=now_s))
                self._room.change(request, cards, 1)
        self._waiting = left
        return started


class Shortest(FirstFit):
    """Starts every job that fits, the shortest run of the highest priority first."""

    @staticmethod
    def rank(request: Request) -> tuple[float, ...]:
        """Return the place of a waiting job; the least starts first."""
        return -request.priority, request.run_s, request.number


class Easy(InOrder):
    """Starts jobs by memory, out of order if they do not delay the first waiting job."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._room = Room(site)
        self._running: dict[int, tuple[float, Placement]] = {}

    def leave(self, placement: Placement, now_s: float) -> None:  # noqa: ARG002 - required by the protocol
        """Release the run's memory and slots."""
        self._room.change(placement.request, placement.cards, -1)
        del self._running[placement.request.number]

    def start(self, now_s: float) -> list[Placement]:
        """Start jobs in order, then later jobs that do not delay the first one that did not fit."""
        started: list[Placement] = []
        while self._waiting and (cards := self._room.place(self._waiting[0])) is not None:
            started.append(self._begin(self._waiting.pop(0), cards, now_s))
        if self._waiting:
            started += self._beside(self._waiting[0], now_s)
        return started

    def _begin(self, request: Request, cards: tuple[int, ...], now_s: float) -> Placement:
        placement = Placement(request=request, cards=cards, start_s=now_s)
        self._room.change(request, cards, 1)
        self._running[request.number] = now_s + at_most_s(request), placement
        return placement

    def _beside(self, head: Request, now_s: float) -> list[Placement]:
        """Start each later job that ends before *head* can start, or leaves enough room beside it."""
        shadow_s, then = self._shadow(head)
        started: list[Placement] = []
        left = [head]
        too_large: set[tuple[int, int]] = set()  # stays valid: room only decreases in this loop
        delaying: set[tuple[int, int]] = set()  # valid while the same devices are chosen
        for request in self._waiting[1:]:
            gone_by_then = now_s + at_most_s(request) <= shadow_s
            asked = request.mem_bytes, request.gpus
            cards = None if asked in too_large else self._room.place(request)
            if cards is None:
                too_large.add(asked)
            elif not gone_by_then and (asked in delaying or not _leaves_room(then, request, cards, head)):
                delaying.add(asked)
                cards = None
            if cards is None:
                left.append(request)
            else:
                started.append(self._begin(request, cards, now_s))
                delaying.clear()
        self._waiting = left
        return started

    def _shadow(self, head: Request) -> tuple[float, Room]:
        """Return the latest start of *head* in seconds, and the room that there will be then."""
        then = self._room.copy()
        shadow_s = 0.0
        for ends_s, placement in sorted(self._running.values(), key=lambda pair: (pair[0], pair[1].request.number)):
            if shadow_s and ends_s > shadow_s:
                break
            then.change(placement.request, placement.cards, -1)
            if not shadow_s and then.place(head) is not None:
                shadow_s = ends_s
        return shadow_s, then


def _leaves_room(then: Room, request: Request, cards: tuple[int, ...], head: Request) -> bool:
    """Return whether *head* fits beside *request*; if so, take the room of *request*."""
    then.change(request, cards, 1)
    if then.place(head) is not None:
        return True
    then.change(request, cards, -1)
    return False
