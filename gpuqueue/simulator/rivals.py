"""The scheduling policies for comparison with gpuqueue: two allocate whole devices, three share them by memory. Pure.

All order jobs by priority, and within one priority by arrival. None considers users.

- :class:`ExclusiveFifo`: a whole device for each requested GPU, strictly in order, like a booking sheet.
- :class:`Backfill`: whole devices too, but a job may start out of order if it does not delay the first waiting job
  (EASY: Lifka, "The ANL/IBM SP Scheduling System", 1995; Mu'alem and Feitelson, 2001). Slurm
  with ``--gres=gpu:N`` and its backfill scheduler allocates GPUs this way. A job without a time limit counts as a year,
  as ``INFINITE`` does in Slurm.
- :class:`FirstFit`: memory on the first devices with enough of it, several jobs on a device, each job as soon as it
  fits. No reservations.
- :class:`Easy`: as :class:`FirstFit`, but a job may pass the first waiting one only if it does not delay it, as far as
  time limits show. A job without a time limit counts as a year.
- :class:`Shortest`: as :class:`FirstFit`, but the shortest run first. It knows how long each job will run, as nobody
  does: a bound for means, not for the longest wait.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection

from gpuqueue.simulator.replay import Placement
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request

#: Assumed duration of a job without a time limit, in seconds.
ENDLESS_S = 365 * 86400.0


class InOrder:
    """Common base of the policies: the waiting jobs in order."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._waiting: list[Request] = []

    def arrive(self, request: Request, now_s: float) -> None:  # noqa: ARG002 - required by the protocol
        """Insert the request in its place."""
        bisect.insort(self._waiting, request, key=self.rank)

    @staticmethod
    def rank(request: Request) -> tuple[float, ...]:
        """Return the place of a waiting job, by priority and arrival; the least starts first."""
        return -request.priority, request.number

    def alarm_s(self) -> float | None:
        """Return None: this policy needs no calls between events."""
        return None


class _WholeCards(InOrder):
    """Common base of the two policies that allocate whole devices."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._free = set(range(len(site.cards)))

    def leave(self, placement: Placement, now_s: float) -> None:  # noqa: ARG002 - required by the protocol
        """Release the devices of the run."""
        self._free.update(placement.cards)

    def _place(self, request: Request, free: Collection[int]) -> tuple[int, ...] | None:
        """Return the smallest free devices of one host that are large enough, or None.

        Of several hosts, the one whose chosen devices have the least total memory is used.
        """
        found: list[tuple[int, tuple[int, ...]]] = []
        for host in self._site.hosts:
            sizes = [(self._site.cards[card].usable_bytes, card) for card in host if card in free]
            chosen = sorted(pair for pair in sizes if pair[0] >= request.mem_bytes)[: request.gpus]
            if len(chosen) == request.gpus:
                found.append((sum(size for size, _ in chosen), tuple(card for _, card in chosen)))
        return min(found)[1] if found else None

    def _take(self, request: Request, cards: tuple[int, ...], now_s: float) -> Placement:
        self._free.difference_update(cards)
        self._waiting.remove(request)
        return Placement(request=request, cards=cards, start_s=now_s)

    def _heads(self, now_s: float) -> list[Placement]:
        """Start jobs in order until one does not fit."""
        started = []
        while self._waiting and (cards := self._place(self._waiting[0], self._free)) is not None:
            started.append(self._take(self._waiting[0], cards, now_s))
        return started


class ExclusiveFifo(_WholeCards):
    """Starts jobs on whole devices strictly in order."""

    def start(self, now_s: float) -> list[Placement]:
        """Start jobs in order until one does not fit."""
        return self._heads(now_s)


class Backfill(_WholeCards):
    """Starts jobs on whole devices, out of order if they do not delay the first waiting job."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._running: dict[int, tuple[float, tuple[int, ...]]] = {}

    def leave(self, placement: Placement, now_s: float) -> None:
        """Release the devices of the run."""
        super().leave(placement, now_s)
        del self._running[placement.request.number]

    def start(self, now_s: float) -> list[Placement]:
        """Start jobs in order, then later jobs that do not delay the first one that did not fit."""
        started = self._heads(now_s)
        self._remember(started)
        if self._waiting and self._free:
            started += self._beside(self._waiting[0], now_s)
        return started

    def _remember(self, started: list[Placement]) -> None:
        for each in started:
            self._running[each.request.number] = each.start_s + at_most_s(each.request), each.cards

    def _beside(self, head: Request, now_s: float) -> list[Placement]:
        shadow_s, then_free = self._shadow(head)
        started: list[Placement] = []
        too_large: set[tuple[int, int]] = set()  # stays valid: free devices only decrease in this loop
        for request in self._waiting[1:]:
            if not self._free:
                break
            asked = request.mem_bytes, request.gpus
            if asked in too_large:
                continue
            cards = self._place(request, self._free)
            if cards is None:
                too_large.add(asked)
                continue
            gone_by_then = now_s + at_most_s(request) <= shadow_s
            if gone_by_then or self._place(head, then_free.difference(cards)) is not None:
                if not gone_by_then:
                    then_free.difference_update(cards)
                started.append(self._take(request, cards, now_s))
        self._remember(started)
        return started

    def _shadow(self, head: Request) -> tuple[float, set[int]]:
        """Return the latest start of *head* in seconds, and the devices that will be free then."""
        free = set(self._free)
        shadow_s = 0.0
        for ends_s, cards in sorted(self._running.values()):
            if shadow_s and ends_s > shadow_s:
                break
            free.update(cards)
            if not shadow_s and self._place(head, free) is not None:
                shadow_s = ends_s
        return shadow_s, free


def at_most_s(request: Request) -> float:
    """Return how long a run can last as far as its time limit shows, in seconds."""
    return ENDLESS_S if request.time_limit_s is None else request.time_limit_s


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
