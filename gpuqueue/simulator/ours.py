"""The policy of gpuqueue: its real scripts in a temporary store with a simulated clock.

Real workers act at every heartbeat. The simulation acts only when that can change something:

- Devices send no heartbeats (see queue/simulated_clock.py).
- Leases never expire, because no worker dies.
- The tick that reserves devices and promotes jobs uses the same grid of seconds as real workers, but runs only after
  an event or when a job has waited long enough. Usage decays at the same times if the tick could change nothing else.
- A device claims only if it might get a job (see ``Chances``).
- A device may leave a job to a better device. The better device usually claims the job at the same time, because all
  devices poll. Otherwise all devices poll again when the job has been left long enough.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Container, Hashable, Mapping, Sequence
from operator import attrgetter

from gpuqueue.learning.rule import LAST
from gpuqueue.learning.signature import nine_of_ten
from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.event import Act, Cursor
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, JobSpec, Priority
from gpuqueue.model.limits import Limits
from gpuqueue.model.run import Ending
from gpuqueue.queue.lease import Claim, Later, Offer
from gpuqueue.queue.simulated_clock import SimulatedClock, SimulatedQueue
from gpuqueue.simulator.replay import Placement
from gpuqueue.simulator.site import Knobs, Site
from gpuqueue.simulator.trace import Request

#: Start of the trace, in ms since 1970. It is long ago, so that real events are later than all simulated ends.
EPOCH_MS = 1_577_836_800_000
#: Returns the expected utilisation of a job; that of the trace is the default.
Expected = Callable[[Request], "float | None"]
TRACED: Expected = attrgetter("utilisation")
#: A duration longer than any trace, in seconds, so that no lease expires and no tick counts as late.
FOR_EVER_S = 100 * 365 * 86400.0
#: Number of events after which ended jobs are deleted from the store.
FORGET_AFTER = 2000


class Ours:
    """The workers, submitters and reaper of a simulated site. ``starts`` counts the runs by the way they started.

    A wake-up message reaches all workers at the same time, and the order in which they poll is random. *seed* sets
    this order. *skip* omits the polls of devices that have no room for any waiting job. *expected* returns what is
    known of the utilisation of a job when it is submitted. How long it takes is learned from the runs that have ended.
    """

    def __init__(
        self, url: str, site: Site, knobs: Knobs, *, seed: int = 0, skip: bool = True, expected: Expected = TRACED
    ) -> None:
        self._site = site
        self._knobs = knobs
        self._seed = seed
        self._skip = skip
        self._expected = expected
        self._clock = SimulatedClock(EPOCH_MS)
        self._queue = SimulatedQueue(url, self._clock, heartbeats=False)
        self._offers = [self._offer(place) for place in range(len(site.cards))]
        self._places = {card.uuid: place for place, card in enumerate(site.cards)}
        self._waiting: dict[int, Request] = {}
        self._claims: dict[int, Claim] = {}
        self._has_limits = knobs.limits != Limits()
        self._chances = Chances(site, has_limits=self._has_limits)
        self._due = Moments(self._waiting)
        self._past: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=LAST))
        self._again_s: float | None = None
        self._ticked_s, self._reaped_s, self._changed = 0.0, 0.0, False
        self._ends: set[int] = set()
        self._nonces = 0
        self._read, self._reported = "0-0", 0
        self.starts: Counter[str] = Counter()
        self._queue.recovery.open(0)
        self._queue.rules.set_policy(
            half_life_s=knobs.half_life_s, urgent=None, shares=knobs.shares, placement=knobs.placement
        )
        self._queue.rules.set_limits(knobs.limits)
        for offer in self._offers:
            self._queue.devices.announce(offer, worker=f"worker-{offer.device.uuid}", pid=1, boot_id="simulated")
            self._queue.devices.heartbeat(offer, (), lease_s=FOR_EVER_S)
        self._tick(0.0)

    def _offer(self, place: int) -> Offer:
        card = self._site.cards[place]
        kind, size = DeviceKind.SIMULATED, card.total_bytes
        return Offer(
            device=Device(uuid=card.uuid, index=card.index, name=card.uuid, kind=kind, total_bytes=size),
            host=card.host,
            headroom_bytes=self._site.headroom_bytes,
            external_bytes=0,
            slots=self._site.slots,
        )

    def close(self) -> None:
        """Read the remaining events and close the connections."""
        self._forget()
        self._queue.close()

    def reserved_idle_device_s(self) -> float:
        """Return for how long devices were idle because they were reserved, in device-seconds."""
        return self._queue.maintenance.reserved_idle_device_s()

    # ---- the Policy protocol ---------------------------------------------------------------------------------------

    def arrive(self, request: Request, now_s: float) -> None:
        """Submit a job for *request*."""
        self._is(now_s)
        lasts_s = nine_of_ten(self._past[_program(request)])
        job = self._queue.requests.submit(_spec(request, self._expected(request), lasts_s), nonce=self._nonce())
        self._waiting[job.id] = request
        self._chances.arrive(request)
        for after_s in (self._knobs.reserve_after_s, self._knobs.age_after_s):
            if after_s is not None:
                self._due.add(now_s + after_s, job.id)
        self._changed = True
        self._reported += 1

    def leave(self, placement: Placement, now_s: float) -> None:
        """Finish the run of *placement*."""
        self._is(now_s)
        claim = self._claims.pop(placement.request.number)
        self._queue.runs.finish(
            claim.job_id,
            claim.token,
            state=JobState.SUCCEEDED,
            ending=Ending.from_status(0),
            duration_s=placement.run_s,
            devices=(),
        )
        if placement.request.run_s == placement.request.duration_s:  # else its time limit ended it
            self._past[_program(placement.request)].append(placement.run_s)
        self._chances.leave(placement)
        self._changed = True
        self._reported += 1

    def start(self, now_s: float) -> list[Placement]:
        """Tick if a tick is due, and let the workers claim until no worker gets a job."""
        self._is(now_s)
        self._tick_if_due(now_s)
        started = []
        while claims := self._round(now_s):
            started += claims
        if self._reported > FORGET_AFTER:
            self._forget()
        return started

    def alarm_s(self) -> float | None:
        """Return the time of the next useful tick, or of the next poll for a job that was left to a better device."""
        moments = (self._tick_alarm_s(), self._again_s) if self._waiting else ()
        return min((each for each in moments if each is not None), default=None)

    # ---- the clock and the ticks -----------------------------------------------------------------------------------

    def _tick_alarm_s(self) -> float | None:
        """Return the time of the next tick that can change something for a waiting job, or None."""
        if self._changed and self._has_long_wait():
            return self._next_tick_s(self._ticked_s)
        due_s = self._due.first_s()
        return self._grid_s(due_s) if due_s < math.inf else None

    def _is(self, now_s: float) -> None:
        self._clock.now_ms = EPOCH_MS + round(now_s * 1000)

    def _now_s(self) -> float:
        return (self._clock.now_ms - EPOCH_MS) / 1000

    def _grid_s(self, moment_s: float) -> float:
        return math.ceil(moment_s / self._knobs.tick_s) * self._knobs.tick_s

    def _next_tick_s(self, after_s: float) -> float:
        """Return the time of the first tick after *after_s* that is not in the past."""
        return max(self._grid_s(self._now_s()), self._grid_s(after_s) + self._knobs.tick_s)

    def _has_long_wait(self) -> bool:
        """Return whether a job has waited long enough for a reservation. The first job has waited longest."""
        after_s = self._knobs.reserve_after_s
        first = next(iter(self._waiting.values()))
        return after_s is not None and self._now_s() - first.arrival_s >= after_s

    def _has_aged_job(self) -> bool:
        """Return whether a job has waited long enough for a promotion. A job ahead of it may have to start first."""
        after_s = self._knobs.age_after_s
        first = next((each for each in self._waiting.values() if each.priority < Priority.HIGH), None)
        return after_s is not None and first is not None and self._now_s() - first.arrival_s >= after_s

    def _tick_if_due(self, now_s: float) -> None:
        is_on_grid = math.isclose(now_s, self._grid_s(now_s), abs_tol=1e-6) and now_s > self._ticked_s
        is_due = self._due.first_s() <= now_s
        if is_on_grid and (is_due or (self._changed and self._waiting)):
            if self._due.pass_until(now_s) or self._has_limits or self._is_tick_useful():
                self._tick(now_s)
            else:
                self._reap(now_s)
                self._ticked_s = now_s
        elif now_s - self._reaped_s >= self._knobs.tick_s:
            self._reap(now_s)

    def _is_tick_useful(self) -> bool:
        return bool(self._waiting) and (self._has_long_wait() or self._has_aged_job())

    def _reap(self, now_s: float) -> None:
        """Run the reaper, which lets usage decay up to now. No lease expires here."""
        passed_s = max(0.0, now_s - self._reaped_s)
        self._queue.maintenance.reap(loss_limit=3, lease_s=FOR_EVER_S, tick_s=FOR_EVER_S, passed_s=passed_s)
        self._reaped_s = now_s

    def _tick(self, now_s: float) -> None:
        self._reap(now_s)
        self._ticked_s, self._changed = now_s, False
        self._due.pass_until(now_s)
        after_s = self._knobs.age_after_s
        if after_s is not None and self._has_aged_job() and self._queue.maintenance.promote(after_s=after_s):
            self._due.add(now_s + after_s)
        if self._knobs.reserve_after_s is not None:
            self._reserve(self._knobs.reserve_after_s)

    def _reserve(self, after_s: float) -> None:
        found = self._queue.maintenance.check_reservations(
            after_s=after_s, most=self._knobs.reservations, budget=self._knobs.reserve_budget
        )
        self._chances.reserve(self._queue.reservation_texts() if found.made else {}, self._waiting)
        due = {each.until_ms for each in found.made if each.until_ms is not None}
        due |= {found.again_ms} if found.again_ms is not None else set()
        for moment_ms in due - self._ends:
            self._due.add((moment_ms - EPOCH_MS) / 1000)
        self._ends = due

    # ---- the workers -----------------------------------------------------------------------------------------------

    def _round(self, now_s: float) -> list[Placement]:
        """Let each device that might get a job claim until it gets none, in a random order."""
        self._again_s = None
        if not self._waiting:
            return []
        started = []
        for place in self._order():
            while self._might_start_any(place) and (claim := self._claim(place)) is not None:
                started.append(self._begin(claim, now_s))
        return started

    def _order(self) -> list[int]:
        """Return the order in which the devices poll at this time: random, but reproducible."""
        order = list(range(len(self._offers)))
        random.Random(f"{self._seed} {self._clock.now_ms}").shuffle(order)  # noqa: S311 - reproducible, not secure
        return order

    def _might_start_any(self, place: int) -> bool:
        if not self._waiting or not self._skip:
            return bool(self._waiting)
        return self._chances.might_start_any(place)

    def _claim(self, place: int) -> Claim | None:
        offer = self._offers[place]
        found = self._queue.runs.seek(
            offer, worker=f"worker-{offer.device.uuid}", lease_s=FOR_EVER_S, nonce=self._nonce(), gpus_here=True
        )
        if isinstance(found, Later):
            self._again_s = self._now_s() + found.after_s
            self._chances.try_all_again()
            return None
        if found is None:
            self._chances.started_none(place)
        return found

    def _begin(self, claim: Claim, now_s: float) -> Placement:
        request = self._waiting.pop(claim.job_id)
        self._queue.runs.started(claim.job_id, claim.token, lease_s=FOR_EVER_S, log_path="/dev/null", devices=())
        self._claims[request.number] = claim
        cards = tuple(self._places[uuid] for uuid in claim.devices)
        placement = Placement(request=request, cards=cards, start_s=now_s)
        self._chances.start(placement, claim.job_id)
        self._changed = True
        self._reported += 2
        return placement

    def _nonce(self) -> str:
        self._nonces += 1
        return f"{self._nonces:x}"

    def _forget(self) -> None:
        """Do the recorder's work: read all events, and let the store delete what they cover."""
        while events := self._queue.outbox.events(self._read):
            self._read = events[-1].id
            self.starts.update(event.fields["start"] for event in events if event.act is Act.CLAIM)
        self._queue.outbox.settle(Cursor(epoch=self._queue.epoch() or "", last_id=self._read))
        self._reported = 0


def _program(request: Request) -> Hashable:
    """Return what stands for the program of a job, of which a trace has only the name and the request."""
    return request.user, request.name, request.mem_bytes, request.gpus, request.time_limit_s


def _spec(request: Request, expected: float | None, lasts_s: float | None) -> JobSpec:
    return JobSpec(
        argv=("simulated",),
        cwd="/",
        account=Account(name=request.user, uid=0, host="simulated"),
        mem_bytes=request.mem_bytes,
        name="simulated",
        gpus=request.gpus,
        time_limit_s=request.time_limit_s,
        priority=request.priority,
        expected_utilisation=expected,
        expected_duration_s=lasts_s,
    )


class Chances:
    """The room of each device, the waiting jobs, and what each device has not yet tried to claim.

    A claim that found nothing finds nothing again until one of these happens:

    - A job arrives that fits the device.
    - A run on the device ends, or its reservation changes.
    - The same on another device of the host, for a job that needs several devices.
    - A job is left to a better device. Then every device might get a job.

    With limits this does not hold: a claim also drops the reservation of a user who has reached a limit.
    """

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


class Moments:
    """Times at which a tick can change something, in seconds, earliest first.

    Those of a job matter only while it is in *waiting*.
    """

    def __init__(self, waiting: Container[int]) -> None:
        self._waiting = waiting
        self._heap: list[tuple[float, int]] = []

    def add(self, moment_s: float, job_id: int = 0) -> None:
        """Add a time. If *job_id* is not 0, the time belongs to that job."""
        heapq.heappush(self._heap, (moment_s, job_id))

    def first_s(self) -> float:
        """Return the earliest time; infinity if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def pass_until(self, now_s: float) -> bool:
        """Remove the times up to *now_s*; return whether one of them matters."""
        matters = False
        while self.first_s() <= now_s:
            _, job_id = heapq.heappop(self._heap)
            matters = matters or not job_id or job_id in self._waiting
        return matters
