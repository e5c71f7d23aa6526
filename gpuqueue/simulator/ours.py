"""The policy of gpuqueue: its own scripts in a store of their own, for which time passes as we say.

What real workers do at every beat is done here where it can change something: nobody beats through an idle night.
Devices that are to be counted on are announced anew right before, leases never run out (nobody dies), and the tick
that keeps room and lifts comes on the same grid of seconds, but only after something has happened, or when a job has
waited long enough. A job that its device leaves to a better one is mostly taken by that one at the same moment, since
all are asked; if not, all are asked again when it was left for long enough.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import field

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.event import Act, Cursor
from gpuqueue.model.job import Account, JobSpec, JobState
from gpuqueue.model.limits import Limits
from gpuqueue.model.placement import Preference
from gpuqueue.model.run import Ending
from gpuqueue.queue.lease import Claim, Later, Offer
from gpuqueue.queue.simulated_clock import SimulatedClock, SimulatedQueue
from gpuqueue.simulator.replay import Placement
from gpuqueue.simulator.site import Site
from gpuqueue.simulator.trace import Request

#: When the trace begins, in ms since 1970: long ago, so that every real event is later than every simulated end.
EPOCH_MS = 1_577_836_800_000
#: Longer than any trace: no lease ends, and no tick finds that it was away.
FOR_EVER_S = 100 * 365 * 86400.0
#: After so many seconds a device's word is renewed before it is counted on (SEEN_MS in lua/capacity.lua is 15 s).
FRESH_S = 10.0
#: What has been kept for longer, and for longer than the wait for it, lets the next job have its turn (reserve.lua).
COUNTS_S, JUST_AFTER_S = 60.0, 0.001
#: So often the store forgets what has ended, in events.
FORGET_AFTER = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """The settings by which the queue orders, as in :class:`gpuqueue.settings.settings.Settings`.

    ``shares`` is by user; ``limits`` refuse nobody (:meth:`gpuqueue.model.limits.Limits.of_runs`).
    """

    half_life_s: float = 7 * 86400.0
    shares: Mapping[str, float] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    reserve_after_s: float | None = 600.0
    reservations: int = 1
    age_after_s: float | None = 86400.0
    placement: Preference = Preference.SPREAD
    tick_s: float = 10.0


class Ours:
    """Workers, submitters and the reaper of a simulated site. ``starts`` counts how runs came to their start.

    All workers hear a bell at once, and which of them asks first is chance: *seed* is that chance. *skip* leaves out
    the questions whose answer is certain, those of devices without room for anything that waits.
    """

    def __init__(self, url: str, site: Site, knobs: Knobs, *, seed: int = 0, skip: bool = True) -> None:
        self._site = site
        self._knobs = knobs
        self._seed = seed
        self._skip = skip
        self._clock = SimulatedClock(EPOCH_MS)
        self._queue = SimulatedQueue(url, self._clock)
        self._offers = [self._offer(place) for place in range(len(site.cards))]
        self._seen_s = [-math.inf] * len(site.cards)
        self._free_bytes = [card.usable_bytes for card in site.cards]
        self._places = {card.uuid: place for place, card in enumerate(site.cards)}
        self._room = [site.slots] * len(site.cards)
        self._waiting: dict[int, Request] = {}
        self._claims: dict[int, Claim] = {}
        self._due: list[float] = []
        self._again_s: float | None = None
        self._ticked_s, self._reaped_s, self._changed = 0.0, 0.0, False
        self._kept: set[tuple[int, tuple[str, ...]]] = set()
        self._ends: set[tuple[int, int]] = set()
        self._nonces = 0
        self._read, self._told = "0-0", 0
        self.starts: Counter[str] = Counter()
        self._open()

    def _open(self) -> None:
        self._queue.open(0)
        knobs = self._knobs
        self._queue.set_policy(
            half_life_s=knobs.half_life_s, urgent=None, shares=knobs.shares, placement=knobs.placement
        )
        self._queue.set_limits(knobs.limits)
        for offer in self._offers:
            self._queue.announce(offer, worker=f"worker-{offer.device.uuid}", pid=1, boot_id="simulated")
        self._tick(0.0)

    def _offer(self, place: int) -> Offer:
        card = self._site.cards[place]
        device = Device(
            uuid=card.uuid, index=card.index, name=card.uuid, kind=DeviceKind.SIMULATED, total_bytes=card.total_bytes
        )
        return Offer(
            device=device,
            host=card.host,
            headroom_bytes=self._site.headroom_bytes,
            foreign_bytes=0,
            slots=self._site.slots,
        )

    def close(self) -> None:
        """Read the rest of what happened and close the connections."""
        self._forget()
        self._queue.close()

    # ---- what a replay asks for ------------------------------------------------------------------------------------

    def arrive(self, request: Request, now_s: float) -> None:
        """Submit it."""
        self._is(now_s)
        job = self._queue.submit(_spec(request), nonce=self._nonce())
        self._waiting[job.id] = request
        for after_s in (self._knobs.reserve_after_s, self._knobs.age_after_s):
            if after_s is not None:
                heapq.heappush(self._due, now_s + after_s)
        self._changed = True
        self._told += 1

    def leave(self, placement: Placement, now_s: float) -> None:
        """Say that its run is over."""
        self._is(now_s)
        claim = self._claims.pop(placement.request.number)
        self._queue.finish(
            claim.job_id,
            claim.token,
            state=JobState.SUCCEEDED,
            ending=Ending.from_status(0),
            duration_s=placement.request.run_s,
            devices=(),
        )
        for place in placement.cards:
            self._free_bytes[place] += placement.request.mem_bytes
            self._room[place] += 1
        self._changed = True
        self._told += 1

    def start(self, now_s: float) -> list[Placement]:
        """Tick if it is time, and let the workers claim until nobody gets anything more."""
        self._is(now_s)
        self._tick_if_due(now_s)
        started = []
        while claims := self._round(now_s):
            started += claims
        if self._told > FORGET_AFTER:
            self._forget()
        return started

    def alarm_s(self) -> float | None:
        """Return the next tick that can change something, or when a job was left to a better device for long enough."""
        if not self._waiting:
            return None
        moments = [each for each in (self._tick_alarm_s(), self._again_s) if each is not None]
        return min(moments, default=None)

    # ---- the clock and the ticks -----------------------------------------------------------------------------------

    def _tick_alarm_s(self) -> float | None:
        """Return the next tick that can change something for those that wait."""
        if self._changed and self._somebody_waited_long():
            return self._next_tick_s(self._ticked_s)
        return self._grid_s(self._due[0]) if self._due else None

    def _is(self, now_s: float) -> None:
        self._clock.now_ms = EPOCH_MS + round(now_s * 1000)

    def _now_s(self) -> float:
        return (self._clock.now_ms - EPOCH_MS) / 1000

    def _grid_s(self, moment_s: float) -> float:
        return math.ceil(moment_s / self._knobs.tick_s) * self._knobs.tick_s

    def _next_tick_s(self, after_s: float) -> float:
        """Return the first tick after *after_s* that is not over."""
        return max(self._grid_s(self._now_s()), self._grid_s(after_s) + self._knobs.tick_s)

    def _somebody_waited_long(self) -> bool:
        """Return whether anybody has waited long enough for devices to be kept; the first waits longest."""
        after_s = self._knobs.reserve_after_s
        first = next(iter(self._waiting.values()))
        return after_s is not None and self._now_s() - first.arrival_s >= after_s

    def _tick_if_due(self, now_s: float) -> None:
        is_on_grid = math.isclose(now_s, self._grid_s(now_s), abs_tol=1e-6) and now_s > self._ticked_s
        if is_on_grid and (self._is_due(now_s) or (self._changed and self._waiting)):
            self._tick(now_s)
        elif now_s - self._reaped_s >= self._knobs.tick_s:
            self._reap(now_s)

    def _is_due(self, now_s: float) -> bool:
        return bool(self._due) and self._due[0] <= now_s

    def _reap(self, now_s: float) -> None:
        """Let usage decay up to now: this is what the tick is for where nobody's lease ends."""
        passed_s = max(0.0, now_s - self._reaped_s)
        self._queue.reap(loss_limit=3, lease_s=FOR_EVER_S, tick_s=FOR_EVER_S, passed_s=passed_s)
        self._reaped_s = now_s

    def _tick(self, now_s: float) -> None:
        self._reap(now_s)
        self._ticked_s, self._changed = now_s, False
        while self._is_due(now_s):
            heapq.heappop(self._due)
        knobs = self._knobs
        self._show(range(len(self._offers)), now_s)
        if knobs.age_after_s is not None and self._queue.age(after_s=knobs.age_after_s):
            heapq.heappush(self._due, now_s + knobs.age_after_s)
        if knobs.reserve_after_s is not None:
            stand = self._queue.reserve(after_s=knobs.reserve_after_s, most=knobs.reservations)
            kept = {(each.job_id, each.devices) for each in stand}
            for _ in kept - self._kept:
                heapq.heappush(self._due, now_s + max(knobs.reserve_after_s, COUNTS_S) + JUST_AFTER_S)
            self._kept = kept
            ends = {(each.job_id, each.until_ms) for each in stand if each.until_ms is not None}
            for _, until_ms in ends - self._ends:
                heapq.heappush(self._due, (until_ms - EPOCH_MS) / 1000)
            self._ends = ends

    # ---- the workers -----------------------------------------------------------------------------------------------

    def _show(self, places: range | tuple[int, ...], now_s: float) -> None:
        """Beat for devices that were silent for long."""
        silent = [place for place in places if now_s - self._seen_s[place] >= FRESH_S]
        if silent:
            self._queue.show([self._offers[place] for place in silent], lease_s=FOR_EVER_S)
        for place in silent:
            self._seen_s[place] = now_s

    def _round(self, now_s: float) -> list[Placement]:
        """Let each device that might get something claim as often as it does; in an order that is chance."""
        self._again_s = None
        if not self._waiting:
            return []
        asking = [place for place in self._order() if self._might_get_something(place)]
        if asking and len(self._offers) > 1:  # who claims counts on the others: one of them may be the better one
            self._show(range(len(self._offers)), now_s)
        started = []
        for place in asking:
            while self._might_get_something(place) and (claim := self._claim(place)) is not None:
                started.append(self._begin(claim, now_s))
        return started

    def _order(self) -> list[int]:
        """Return in which order the devices ask at this moment: as chance has it, and the same each time."""
        order = list(range(len(self._offers)))
        random.Random(f"{self._seed} {self._clock.now_ms}").shuffle(order)  # noqa: S311 - to be the same again
        return order

    def _might_get_something(self, place: int) -> bool:
        if not self._waiting:
            return False
        if not self._skip:
            return True
        free = self._free_bytes[place]
        return self._room[place] > 0 and any(request.mem_bytes <= free for request in self._waiting.values())

    def _claim(self, place: int) -> Claim | None:
        offer = self._offers[place]
        self._seen_s[place] = self._now_s()
        found = self._queue.seek(
            offer, worker=f"worker-{offer.device.uuid}", lease_s=FOR_EVER_S, nonce=self._nonce(), gpus_here=True
        )
        if isinstance(found, Later):
            self._again_s = self._now_s() + found.after_s
            return None
        return found

    def _begin(self, claim: Claim, now_s: float) -> Placement:
        request = self._waiting.pop(claim.job_id)
        self._queue.started(claim.job_id, claim.token, lease_s=FOR_EVER_S, log_path="/dev/null", devices=())
        self._claims[request.number] = claim
        cards = tuple(self._places[uuid] for uuid in claim.devices)
        for place in cards:
            self._free_bytes[place] -= request.mem_bytes
            self._room[place] -= 1
        self._changed = True
        self._told += 2
        return Placement(request=request, cards=cards, start_s=now_s)

    def _nonce(self) -> str:
        self._nonces += 1
        return f"{self._nonces:x}"

    def _forget(self) -> None:
        """Do what the recorder does: read what happened, and let the store forget it."""
        while events := self._queue.events(self._read):
            self._read = events[-1].id
            self.starts.update(event.fields["start"] for event in events if event.act is Act.CLAIM)
        self._queue.settle(Cursor(epoch=self._queue.epoch() or "", last_id=self._read))
        self._told = 0


def _spec(request: Request) -> JobSpec:
    return JobSpec(
        argv=("simulated",),
        cwd="/",
        account=Account(name=request.user, uid=0, host="simulated"),
        mem_bytes=request.mem_bytes,
        name="simulated",
        gpus=request.gpus,
        time_limit_s=request.time_limit_s,
        level=request.level,
    )
