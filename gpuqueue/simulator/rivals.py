"""What a site would have without us: three policies in their plain forms. Pure.

All of them take what waits by level, and within a level in the order of arrival. None knows users.

- :class:`ExclusiveFifo`: a whole card for each GPU that is asked for, and nobody passes anybody: a sheet on the wall.
- :class:`Backfill`: whole cards as well, but who does not delay the first may pass him (EASY: Lifka, "The ANL/IBM SP
  Scheduling System", 1995; Mu'alem and Feitelson, 2001). So Slurm gives out GPUs with ``--gres=gpu:N`` and its backfill
  scheduler. A job without a limit counts as a year, as ``INFINITE`` does there.
- :class:`FirstFit`: by memory, several jobs on a card, whoever fits first: no fairness, nothing is kept.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection

from gpuqueue.simulator.replay import Placement
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request

#: What a job without a time limit is thought to take, in seconds.
ENDLESS_S = 365 * 86400.0


def _rank(request: Request) -> tuple[int, int]:
    return -request.level, request.number


class _WholeCards:
    """What the two that give out whole cards have in common."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._free = set(range(len(site.cards)))
        self._waiting: list[Request] = []

    def arrive(self, request: Request, now_s: float) -> None:  # noqa: ARG002 - the protocol's
        """Put it behind all that come before it."""
        bisect.insort(self._waiting, request, key=_rank)

    def leave(self, placement: Placement, now_s: float) -> None:  # noqa: ARG002 - the protocol's
        """Give its cards back."""
        self._free.update(placement.cards)

    def alarm_s(self) -> float | None:
        """Nothing happens by itself."""
        return None

    def _place(self, request: Request, free: Collection[int]) -> tuple[int, ...] | None:
        """Return the smallest cards of one host that are free and large enough, on the host that loses least."""
        best: tuple[int, tuple[int, ...]] | None = None
        for host in self._site.hosts:
            fitting = [(self._usable(card), card) for card in host if card in free]
            chosen = sorted(pair for pair in fitting if pair[0] >= request.mem_bytes)[: request.gpus]
            if len(chosen) == request.gpus:
                found = sum(size for size, _ in chosen), tuple(card for _, card in chosen)
                best = found if best is None else min(best, found)
        return None if best is None else best[1]

    def _usable(self, card: int) -> int:
        return self._site.cards[card].usable_bytes

    def _take(self, request: Request, cards: tuple[int, ...], now_s: float) -> Placement:
        self._free.difference_update(cards)
        self._waiting.remove(request)
        return Placement(request=request, cards=cards, start_s=now_s)

    def _heads(self, now_s: float) -> list[Placement]:
        """Start from the front until one does not fit."""
        started = []
        while self._waiting and (cards := self._place(self._waiting[0], self._free)) is not None:
            started.append(self._take(self._waiting[0], cards, now_s))
        return started


class ExclusiveFifo(_WholeCards):
    """Nobody passes anybody."""

    def start(self, now_s: float) -> list[Placement]:
        """Start from the front."""
        return self._heads(now_s)


class Backfill(_WholeCards):
    """Who does not delay the first may pass him."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._running: dict[int, tuple[float, tuple[int, ...]]] = {}

    def leave(self, placement: Placement, now_s: float) -> None:
        """Give its cards back."""
        super().leave(placement, now_s)
        del self._running[placement.request.number]

    def start(self, now_s: float) -> list[Placement]:
        """Start from the front, and then whoever keeps the first that did not fit from nothing."""
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
        too_large: set[tuple[int, int]] = set()  # less and less is free
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
        """Return when the head can start at the latest, and all that will be free then."""
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


class FirstFit:
    """By memory, in order, whoever fits."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._free_bytes = [card.usable_bytes for card in site.cards]
        self._places = [site.slots] * len(site.cards)
        self._waiting: list[Request] = []

    def arrive(self, request: Request, now_s: float) -> None:  # noqa: ARG002 - the protocol's
        """Put it behind all that come before it."""
        bisect.insort(self._waiting, request, key=_rank)

    def leave(self, placement: Placement, now_s: float) -> None:  # noqa: ARG002 - the protocol's
        """Give its memory back."""
        self._change(placement, -1)

    def alarm_s(self) -> float | None:
        """Nothing happens by itself."""
        return None

    def start(self, now_s: float) -> list[Placement]:
        """Go through all that wait, and start each that fits, on the first devices with room."""
        started: list[Placement] = []
        left: list[Request] = []
        too_large: list[tuple[int, int]] = []  # less and less is free
        for request in self._waiting:
            cards = None
            if not any(mem <= request.mem_bytes and gpus <= request.gpus for mem, gpus in too_large):
                cards = self._place(request)
            if cards is None:
                asked = request.mem_bytes, request.gpus
                if asked not in too_large:
                    too_large.append(asked)
                left.append(request)
                continue
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
