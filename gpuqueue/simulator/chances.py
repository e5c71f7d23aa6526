"""Which devices of a simulated site might get a job that they did not get at their last claim. Pure.

A claim that found nothing finds nothing again until one of these happens:

- A job arrives that fits the device.
- A run on the device ends, or its reservation changes.
- The same on another device of the host, for a job that needs several devices.
- A job is left to a better device. Then every device might get a job.

With limits this does not hold: a claim also drops the reservation of a user who has reached a limit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from gpuqueue.simulator.replay import Placement
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request


class Chances:
    """The room of each device, the waiting jobs, and what each device has not yet tried to claim."""

    def __init__(self, site: Site, *, has_limits: bool) -> None:
        self._hosts = site.hosts
        self._has_limits = has_limits
        self._places = {card.uuid: place for place, card in enumerate(site.cards)}
        self._free_bytes = [card.usable_bytes for card in site.cards]
        self._slots = [site.slots] * len(site.cards)
        self._sizes: Counter[int] = Counter()
        self._joint: Counter[tuple[int, int]] = Counter()  # (bytes, devices) of the jobs that need several devices
        self._texts: Mapping[str, str] = {}
        self._holders: dict[int, tuple[int, bool]] = {}  # device -> its reserved job, and whether it needs several
        #: The smallest job that each device might get. With limits always 0: any job that fits.
        self._untried_bytes = [0.0 if has_limits else math.inf] * len(site.cards)

    def might_start_any(self, place: int) -> bool:
        """Return whether the device might get a waiting job. There must be one."""
        return self._slots[place] > 0 and max(min(self._sizes), self._untried_bytes[place]) <= self._free_bytes[place]

    def started_none(self, place: int) -> None:
        """Note a claim that found no job."""
        if not self._has_limits:
            self._untried_bytes[place] = math.inf

    def arrive(self, request: Request) -> None:
        """Add a waiting job."""
        self._count(request, 1)
        self._untried_bytes = [min(size, request.mem_bytes) for size in self._untried_bytes]

    def start(self, placement: Placement, job_id: int) -> None:
        """Note that a waiting job runs. Its reservation ends."""
        self._count(placement.request, -1)
        self._take(placement, 1)
        released = [place for place, (holder, _) in self._holders.items() if holder == job_id]
        for place in released:
            del self._holders[place]
        if released:
            self._try_again(released)

    def leave(self, placement: Placement) -> None:
        """Note that a run has ended."""
        self._take(placement, -1)
        self._try_again(placement.cards)

    def reserve(self, texts: Mapping[str, str], waiting: Mapping[int, Request]) -> None:
        """Note the store's entry of each reserved device: ``job:…``."""
        changed = {self._places[device] for device, _ in texts.items() ^ self._texts.items()}
        self._texts = texts
        holders = {self._places[device]: int(text.partition(":")[0]) for device, text in texts.items()}
        self._holders = {place: (job_id, waiting[job_id].gpus > 1) for place, job_id in holders.items()}
        if changed:
            self._try_again(changed)

    def try_all_again(self) -> None:
        """Note that every device might get a job."""
        self._untried_bytes = [0.0] * len(self._untried_bytes)

    def _try_again(self, places: Collection[int]) -> None:
        for host in self._hosts:
            free = [place for place in host if place not in self._holders]
            least = min((size for size, gpus in self._joint if self._is_room(free, size, gpus)), default=math.inf)
            for place in host:
                _, is_joint = self._holders.get(place, (0, False))
                new_bytes = least if place not in self._holders else 0.0 if is_joint else math.inf
                self._untried_bytes[place] = min(self._untried_bytes[place], new_bytes)
        for place in places:
            self._untried_bytes[place] = 0.0

    def _is_room(self, places: Sequence[int], size_bytes: int, gpus: int) -> bool:
        return sum(self._slots[place] > 0 and self._free_bytes[place] >= size_bytes for place in places) >= gpus

    def _take(self, placement: Placement, sign: int) -> None:
        for place in placement.cards:
            self._free_bytes[place] -= sign * placement.request.mem_bytes
            self._slots[place] -= sign

    def _count(self, request: Request, sign: int) -> None:
        self._sizes[request.mem_bytes] += sign
        self._sizes = +self._sizes  # without zeros
        if request.gpus > 1:
            self._joint[request.mem_bytes, request.gpus] += sign
            self._joint = +self._joint
