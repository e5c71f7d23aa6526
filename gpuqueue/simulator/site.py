"""The devices and the scheduling settings of a simulated site. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.limits import Limits
from gpuqueue.model.placement import Preference
from gpuqueue.simulator.trace import Request
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import format_bytes, parse_bytes

_CARDS = re.compile(r"(?:(\d{1,15})x)?(\S+)", re.ASCII)
#: Largest number of devices of a site. A claim reads all devices of its host.
MOST_CARDS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One device. ``usable_bytes`` is the memory that can be allocated to jobs if nothing runs on the device."""

    uuid: str
    host: str
    index: int
    total_bytes: int
    usable_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Devices, ordered by host. ``slots`` is the largest number of jobs on a device."""

    cards: tuple[Card, ...]
    slots: int
    headroom_bytes: int = 0

    @classmethod
    def parse(cls, text: str, *, slots: int, headroom_bytes: int = 0) -> Site:
        """Return the site that *text* describes, such as ``4x24G,2x80G/8x24G``.

        Commas separate models of devices, slashes separate hosts. A prefix ``sim:``, which ``gpuqueue up`` needs, is
        accepted and ignored.

        Raises:
            BadRequest: the text describes no site, has too many devices, or a device has no memory beyond the headroom.

        """
        cards: list[Card] = []
        for number, words in enumerate(text.strip().removeprefix("sim:").split("/")):
            host = f"host{number}"
            kinds = [_kind(word) for word in words.split(",")]
            count = len(cards) + sum(number for number, _ in kinds)
            if count > MOST_CARDS:  # checked first: a typing error must not fill the memory
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
        """Return for each host the positions of its devices in ``cards``."""
        found: dict[str, list[int]] = {}
        for place, card in enumerate(self.cards):
            found.setdefault(card.host, []).append(place)
        return tuple(map(tuple, found.values()))

    @property
    def usable_bytes(self) -> int:
        """Return the memory of all devices that can be allocated to jobs, in bytes."""
        return sum(card.usable_bytes for card in self.cards)

    def could_run(self, request: Request) -> bool:
        """Return whether one host has enough devices that are large enough. ``submit.lua`` has the same rule."""
        return any(
            sum(self.cards[place].usable_bytes >= request.mem_bytes for place in host) >= request.gpus
            for host in self.hosts
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """The scheduling settings, as in :class:`gpuqueue.settings.settings.Settings`.

    ``shares`` maps users to shares. ``limits`` must refuse no job (:meth:`gpuqueue.model.limits.Limits.of_runs`).
    """

    half_life_s: float = 7 * 86400.0
    shares: Mapping[str, float] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    reserve_after_s: float | None = 600.0
    reservations: int = 1
    reserve_budget: float | None = 0.03
    age_after_s: float | None = 86400.0
    placement: Preference = Preference.SPREAD
    tick_s: float = 10.0


def _kind(word: str) -> tuple[int, int]:
    """Return the number of devices of one model, and the memory of each in bytes."""
    match = _CARDS.fullmatch(word.strip())
    if match is None or not int(match[1] or 1) or not match[2][0].isdigit():
        raise BadRequest(f"{brief(word)} names no devices: write 4x24G, with commas between kinds, / between hosts")
    return int(match[1] or 1), parse_bytes(match[2])
