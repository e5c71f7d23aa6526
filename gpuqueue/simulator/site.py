"""The devices of a site that is only thought of. Pure."""

from __future__ import annotations

import re

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.simulator.trace import Request
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import format_bytes, parse_bytes

_CARDS = re.compile(r"(?:(\d{1,15})x)?(\S+)", re.ASCII)
#: Most devices of a site: a claim looks at all of its host's.
MOST_CARDS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One device. ``usable_bytes`` is what can be promised of it when nothing runs there."""

    uuid: str
    host: str
    index: int
    total_bytes: int
    usable_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Devices, host by host, with so many ``slots`` each."""

    cards: tuple[Card, ...]
    slots: int
    headroom_bytes: int = 0

    @classmethod
    def parse(cls, text: str, *, slots: int, headroom_bytes: int = 0) -> Site:
        """Return the site that ``4x24G,2x80G/8x24G`` describes: kinds of cards by commas, hosts by slashes.

        A ``sim:`` before it is taken as read: ``gpuqueue up`` wants one there.

        Raises:
            BadRequest: it describes none, or no card has memory beyond the headroom.

        """
        cards: list[Card] = []
        for number, words in enumerate(text.strip().removeprefix("sim:").split("/")):
            host = f"host{number}"
            kinds = [_kind(word) for word in words.split(",")]
            count = len(cards) + sum(number for number, _ in kinds)
            if count > MOST_CARDS:  # before they are made: a slip of the finger must not fill the memory
                raise BadRequest(f"{brief(text)} has {count} devices or more: at most {MOST_CARDS} can be simulated")
            sizes = [size for number, size in kinds for _ in range(number)]
            for index, total_bytes in enumerate(sizes):
                if total_bytes <= headroom_bytes:
                    headroom, total = format_bytes(headroom_bytes), format_bytes(total_bytes)
                    raise BadRequest(f"a headroom of {headroom} leaves nothing of a card with {total}: see --headroom")
                cards.append(
                    Card(
                        uuid=f"sim-{host}-{index}",
                        host=host,
                        index=index,
                        total_bytes=total_bytes,
                        usable_bytes=total_bytes - headroom_bytes,
                    )
                )
        return cls(cards=tuple(cards), slots=slots, headroom_bytes=headroom_bytes)

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """Return the places in ``cards`` of each host's devices."""
        found: dict[str, list[int]] = {}
        for place, card in enumerate(self.cards):
            found.setdefault(card.host, []).append(place)
        return tuple(map(tuple, found.values()))

    @property
    def usable_bytes(self) -> int:
        """Return what all devices together can promise."""
        return sum(card.usable_bytes for card in self.cards)

    def could_run(self, request: Request) -> bool:
        """Return whether one host has enough devices that are large enough: the rule of ``submit.lua``."""
        return any(
            sum(self.cards[place].usable_bytes >= request.mem_bytes for place in host) >= request.gpus
            for host in self.hosts
        )


def _kind(word: str) -> tuple[int, int]:
    """Return how many cards of one kind there are, and the memory of each in bytes."""
    match = _CARDS.fullmatch(word.strip())
    if match is None or not int(match[1] or 1) or not match[2][0].isdigit():
        raise BadRequest(f"{brief(word)} names no devices: write 4x24G, with commas between kinds, / between hosts")
    return int(match[1] or 1), parse_bytes(match[2])
