"""A simulated site for :mod:`benchmarks.bench_scale`: 64 devices on 8 hosts, 200 users, and a settable clock.

The scripts, the queue's methods, the recorder and the history are the real ones. The clock is simulated
(:mod:`gpuqueue.queue.simulated_clock`), and no job computes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

from benchmarks.measure.place import Store
from gpuqueue.codec.request import encode_spec
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.device import Device, DeviceKind, Peak, PeakSource
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, JobSpec, Priority
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.keys import LIVE, OUTBOX, PREFIX
from gpuqueue.queue.lease import Claim, Offer
from gpuqueue.queue.simulated_clock import SimulatedClock, SimulatedQueue, SimulatedScripts
from gpuqueue.text.units import GIB
from workers.services.recorder import Recorder

USERS, HOSTS, DEVICES = 200, 8, 8
#: The requested sizes, and the time limits. With the users and the priorities they make the shapes that wait.
SIZES_BYTES = tuple(size * GIB for size in range(1, 31))
LIMITS_S = (None, 600.0, 3600.0, 86400.0)
CARD_BYTES = 32 * GIB
#: When the week begins, in ms since 1970: long ago, so that every event is in the past of the store's own clock.
EPOCH_MS = 1_577_836_800_000
#: A time, in seconds, after which no lease ends within the week, and no tick detects an absence.
FOR_EVER_S = 365 * 86400.0
#: Jobs in one pipeline while the queue is filled, and jobs between two turns of the recorder.
PIPE, FILL = 1000, 20_000
#: The store's keys that detect repeated submits; each expires after ten minutes.
NONCES = PREFIX + "idem:*"
#: The prefixes of a job's keys, and of the keys of users, shapes and devices in use (see gpuqueue/queue/keys.py).
OF_JOBS, OF_SITE = ("j", "s"), ("q", "us", "su", "ul", "sh", "run", "dl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """Counts of the store's keys: each ``live`` job has two; those of users, shapes and devices do not count."""

    of_jobs: int
    live: int
    other: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A run on one device."""

    claim: Claim
    since_ms: int


class SimulatedSite:
    """The submitters, workers, reaper and recorder of one site."""

    def __init__(self, store: Store, database: HistoryDatabase) -> None:
        self.clock = SimulatedClock(EPOCH_MS)
        self.queue = SimulatedQueue(store.settings.redis_url, self.clock)
        self.queue.recovery.open(0)
        self.database = database
        self.recorder = Recorder(store.settings, self.queue, database)
        self._client = store.client
        self._scripts = SimulatedScripts(store.client, self.clock)
        self._chance = random.Random(1)  # noqa: S311 - the same jobs each time
        self._nonces = (f"{number:x}" for number in count(1))
        self._words = [_words(spec) for spec in specs()]
        self._offers = [_offer(host, place) for host in range(HOSTS) for place in range(DEVICES)]
        self._running: dict[str, Running] = {}
        for offer in self._offers:
            self.queue.devices.announce(offer, worker=f"worker-{offer.device.uuid}", pid=1, boot_id="simulated")
        self.tick(0.0)

    def close(self) -> None:
        """Close the connections."""
        self.queue.close()

    # ---- submitters ------------------------------------------------------------------------------------------------

    def submit(self, jobs: int) -> None:
        """Submit *jobs* jobs of all users, sizes, limits and priorities."""
        made = self._requests(jobs)
        while some := list(islice(made, PIPE)):
            for reply in self._scripts.run_each("submit", some):
                if isinstance(reply, Exception):
                    raise reply

    def fill(self, jobs: int) -> None:
        """Submit *jobs* jobs, and record meanwhile: otherwise the outbox would hold each of them as well."""
        for start in range(0, jobs, FILL):
            self.submit(min(FILL, jobs - start))
            self.record()

    def _requests(self, jobs: int) -> Iterator[tuple[str | int, ...]]:
        for _ in range(jobs):
            user, priority, mem_bytes, shape, text = self._chance.choice(self._words)
            yield user, priority, mem_bytes, shape, 1, text, next(self._nonces), "", ""

    # ---- workers ---------------------------------------------------------------------------------------------------

    def hour(self, jobs: int) -> int:
        """Let *jobs* jobs arrive, start and end within an hour; return the number of events for the recorder."""
        turns = max(1, jobs // len(self._offers))
        for _ in range(turns):
            self.clock.now_ms += 3600_000 // turns
            self.turn(3600.0 / turns)
        return int(self._client.xlen(OUTBOX))

    def turn(self, passed_s: float) -> None:
        """Let every device end its run and start another, and submit as many jobs."""
        self.tick(passed_s)
        self.submit(len(self._offers))
        for offer in self._offers:
            self._end(offer)
            self._begin(offer)

    def tick(self, passed_s: float) -> None:
        """Do the work of heartbeats and the reaper: show the devices, decay the usage, reserve devices."""
        for offer in self._offers:
            self.queue.devices.heartbeat(offer, (), lease_s=FOR_EVER_S)
        self.queue.maintenance.reap(loss_limit=3, lease_s=FOR_EVER_S, tick_s=FOR_EVER_S, passed_s=passed_s)
        self.queue.maintenance.reserve(after_s=600.0, most=1)

    def _begin(self, offer: Offer) -> None:
        claim = self.queue.runs.claim(
            offer, worker=offer.device.uuid, lease_s=FOR_EVER_S, nonce=next(self._nonces), gpus_here=True
        )
        if claim is None:
            return
        before = (_run_device(offer, claim.lease_bytes),)
        path = f"/state/runs/{claim.job_id}/{claim.token}/log"
        self.queue.runs.started(claim.job_id, claim.token, lease_s=FOR_EVER_S, log_path=path, devices=before)
        self._running[offer.device.uuid] = Running(claim=claim, since_ms=self.clock.now_ms)

    def _end(self, offer: Offer) -> None:
        run = self._running.pop(offer.device.uuid, None)
        if run is None:
            return
        ending = Ending.from_status(0 if self._chance.random() < 0.9 else 1)  # noqa: PLR2004 - one in ten fails
        self.queue.runs.finish(
            run.claim.job_id,
            run.claim.token,
            state=JobState.SUCCEEDED if ending.exit_code == 0 else JobState.FAILED,
            ending=ending,
            duration_s=(self.clock.now_ms - run.since_ms) / 1000,
            devices=(_run_device(offer, run.claim.lease_bytes, ended=True),),
        )

    # ---- recorder --------------------------------------------------------------------------------------------------

    def record(self) -> int:
        """Record until the outbox is empty; return the number of events."""
        return sum(iter(lambda: self.recorder.record(0), 0))

    def forget_nonces(self) -> None:
        """Delete the keys that detect repeated submits: ten minutes pass for them, while a week takes minutes here."""
        nonces = list(self._client.scan_iter(NONCES, count=10_000))
        for start in range(0, len(nonces), PIPE):
            self._client.unlink(*nonces[start : start + PIPE])

    def keys(self) -> Keys:
        """Return the number of keys in the store, by kind."""
        self.forget_nonces()
        kinds = Counter(key.split(":", 2)[1] for key in self._client.scan_iter(count=10_000))
        of_jobs, of_site = (sum(kinds[each] for each in some) for some in (OF_JOBS, OF_SITE))
        return Keys(of_jobs=of_jobs, live=int(self._client.zcard(LIVE)), other=kinds.total() - of_jobs - of_site)

    def used_bytes(self) -> int:
        """Return the memory that the store uses."""
        return int(self._client.info("memory")["used_memory"])


def specs() -> Iterator[JobSpec]:
    """Yield a spec of each user, size and limit, with the priorities in turn, and without an environment."""
    priorities: Sequence[Priority] = list(Priority)
    for user in range(USERS):
        for place, mem_bytes in enumerate(SIZES_BYTES):
            for step, limit_s in enumerate(LIMITS_S):
                yield JobSpec(
                    argv=("python", "train.py"),
                    cwd=f"/home/user{user}",
                    account=Account(name=f"user{user}", uid=1000 + user, host="laptop"),
                    mem_bytes=mem_bytes,
                    name="train",
                    time_limit_s=limit_s,
                    priority=priorities[(user + place + step) % len(priorities)],
                )


def _words(spec: JobSpec) -> tuple[str, int, int, str, str]:
    return spec.account.name, int(spec.priority), spec.mem_bytes, str(spec.shape), encode_spec(spec)


def _offer(host: int, place: int) -> Offer:
    device = Device(
        uuid=f"sim-node{host}-{place}",
        index=place,
        name="Simulated 32G",
        kind=DeviceKind.SIMULATED,
        total_bytes=CARD_BYTES,
    )
    return Offer(device=device, host=f"node{host}", headroom_bytes=0, external_bytes=0, slots=1)


def _run_device(offer: Offer, lease_bytes: int, *, ended: bool = False) -> RunDevice:
    device = offer.device
    before = RunDevice(
        uuid=device.uuid,
        lease_bytes=lease_bytes,
        index=device.index,
        name=device.name,
        kind=device.kind,
        total_bytes=device.total_bytes,
    )
    peak = Peak(bytes=lease_bytes // 2, source=PeakSource.SIMULATED, samples=10, interval_s=1.0, shared=False)
    return replace(before, peak=peak) if ended else before
