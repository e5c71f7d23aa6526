"""Three other scheduling policies in their plain forms, for comparison with gpuqueue. Pure.

All of them order jobs by priority, and within one priority by arrival. None considers users.

- :class:`ExclusiveFifo`: a whole device for each requested GPU, strictly in order, like a booking sheet.
- :class:`Backfill`: whole devices too, but a job may start out of order if it does not delay the first waiting job
  (EASY: Lifka, "The ANL/IBM SP Scheduling System", 1995; Mu'alem and Feitelson, 2001). Slurm
  with ``--gres=gpu:N`` and its backfill scheduler allocates GPUs this way. A job without a time limit counts as a year,
  as ``INFINITE`` does in Slurm.
- :class:`FirstFit`: by memory, several jobs on a device, each job as soon as it fits. No fairness, no reservations.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection

from gpuqueue.simulator.replay import Placement
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request

#: Assumed duration of a job without a time limit, in seconds.
ENDLESS_S = 365 * 86400.0


def _rank(request: Request) -> tuple[int, int]:
    return -request.priority, request.number


class _InOrder:
    """Common base of the policies: the waiting jobs in order of priority and arrival."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._waiting: list[Request] = []

    def arrive(self, request: Request, now_s: float) -> None:  # noqa: ARG002 - required by the protocol
        """Insert the request in order of priority and arrival."""
        bisect.insort(self._waiting, request, key=_rank)

    def alarm_s(self) -> float | None:
        """Return None: this policy needs no calls between events."""
        return None


class _WholeCards(_InOrder):
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
            self._running[each.request.number] = each.start_s + _at_most_s(each.request), each.cards

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
            gone_by_then = now_s + _at_most_s(request) <= shadow_s
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


def _at_most_s(request: Request) -> float:
    return ENDLESS_S if request.time_limit_s is None else request.time_limit_s


class FirstFit(_InOrder):
    """Starts every job that fits by memory, in order, with several jobs on a device."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._free_bytes = [card.usable_bytes for card in site.cards]
        self._places = [site.slots] * len(site.cards)

    def leave(self, placement: Placement, now_s: float) -> None:  # noqa: ARG002 - required by the protocol
        """Release the run's memory and slots."""
        self._change(placement, -1)

    def start(self, now_s: float) -> list[Placement]:
        """Start each waiting job that fits, in order, on the first devices with enough free memory."""
        started: list[Placement] = []
        left: list[Request] = []
        too_large: set[tuple[int, int]] = set()  # stays valid: free memory only decreases in this loop
        for request in self._waiting:
            asked = request.mem_bytes, request.gpus
            cards = None if asked in too_large else self._place(request)
            if cards is None:
                too_large.add(asked)
                left.append(request)
            else:
                started.append(Placement(request=request, cards=cards, start_s=now_s))
                self._change(started[-1], 1)
        self._waiting = left
        return started

    def _place(self, request: Request) -> tuple[int, ...] | None:
        for host in self._site.hosts:
            room = [card for card in host if self._places[card] and self._free_bytes[card] >= request.mem_bytes]
            if len(room) >= request.gpus:
                return tuple(room[: request.gpus])
        return None

    def _change(self, placement: Placement, sign: int) -> None:
        for card in placement.cards:
            self._free_bytes[card] -= sign * placement.request.mem_bytes
            self._places[card] -= sign
