"""The claim is stored as a function where the store has functions. No call may trust the memory of an earlier call."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import redis
from factories import make_device, make_offer, make_spec, must_claim, serve, submit, submit_and_claim
from own_store import OwnStore
from store_dump import dump

from gpuqueue.errors import GpuQueueError
from gpuqueue.model.array import Array
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, JobSpec, Priority
from gpuqueue.model.limits import Limits
from gpuqueue.model.placement import Placement, Preference
from gpuqueue.model.run import Ending
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim, Offer, Verdicts
from gpuqueue.queue.scripts import whole
from gpuqueue.queue.simulated_clock import CLOCK, SimulatedClock, SimulatedQueue, SimulatedScripts
from gpuqueue.text.units import GIB

#: Those that choose among the devices of a site.
FILTERS = [each for each in DeviceFilter if not each.is_engine]
EPOCH_MS = 1_700_000_000_000
STEPS = 400


@pytest.fixture
def admin(own_store: OwnStore) -> Iterator[redis.Redis]:
    """Return a client of a private store, which is open and has a device."""
    client = connect(own_store.url)
    try:
        client.execute_command("FUNCTION LIST")
    except redis.ResponseError:
        client.close()
        pytest.skip("this store has no functions: Redis has them from 7 on")
    queue = JobQueue(own_store.url)
    queue.recovery.open(0)
    serve(queue)
    queue.close()
    yield client
    client.close()


@pytest.fixture
def queue(own_store: OwnStore, admin: redis.Redis) -> Iterator[JobQueue]:
    """Return a queue in the private store, as a worker has it."""
    made = JobQueue(own_store.url)
    admin.config_resetstat()
    yield made
    made.close()


def libraries(client: redis.Redis) -> list[str]:
    """Return the names of all libraries in the store."""
    return sorted({*re.findall(r"gpuqueue_claim_\w+", str(client.execute_command("FUNCTION LIST")))})


def calls(client: redis.Redis) -> dict[str, int]:
    """Return how often each command that runs Lua was called."""
    reported: dict[str, Any] = client.info("commandstats")
    return {name: reported.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha", "fcall")}


# ---- loading the function ------------------------------------------------------------------------------------------


def test_a_claim_is_a_function_that_stays(queue: JobQueue, admin: redis.Redis) -> None:
    """The claim function is loaded once, however many claims and workers there are."""
    for _ in range(3):
        queue.requests.submit(make_spec())
    admin.config_resetstat()

    claimed = [must_claim(queue).job_id for _ in range(2)]
    other = JobQueue(queue.url)
    claimed.append(must_claim(other).job_id)
    other.close()

    assert [1, 2, 3] == claimed
    assert {"eval": 0, "evalsha": 0, "fcall": 4} == calls(admin), "the first call found none"
    assert 1 == admin.info("commandstats")["cmdstat_function|load"]["calls"]


@pytest.mark.full
def test_a_claim_does_not_mix_up_shapes_however_many_it_has_read(queue: JobQueue, admin: redis.Redis) -> None:
    """A claim does not mix up shapes, even when it has parsed more of them than the server-side cache holds."""
    # The cache of parsed shapes has a maximum size, after which it starts again.
    most = int(re.findall(r"MOST_PARSED = \{\}, 0, (\d+)", whole("claim"))[0])
    sizes = [GIB + number * 2**20 for number in range(most + 20)]
    ids = {submit(queue, mem_bytes=size): size for size in sizes}

    claimed = []
    for _ in sizes:
        claimed.append(must_claim(queue))
        admin.delete(keys.device_leases("GPU-0"))

    assert list(ids.items()) == [(each.job_id, each.lease_bytes) for each in claimed]
    fits = ids.popitem()[1] + 2**20
    for size in (fits + 2**20, fits):  # neither size was parsed before
        ids[submit(queue, mem_bytes=size)] = size
    assert fits == must_claim(queue, external_bytes=24 * GIB - fits).lease_bytes


def test_a_store_that_lost_its_functions_gets_them_again(queue: JobQueue, admin: redis.Redis) -> None:
    """A store that lost its functions (by a restart without data or a flush) gets them again."""
    # The claim is made once.
    for _ in range(2):
        queue.requests.submit(make_spec())
    must_claim(queue)
    admin.execute_command("FUNCTION FLUSH")

    assert 2 == must_claim(queue).job_id
    assert 1 == len(libraries(admin))


def older(client: redis.Redis, number: int) -> str:
    """Load a library of another version; return its name."""
    name = f"gpuqueue_claim_{number:040x}"
    client.execute_command("FUNCTION LOAD", f"#!lua name={name}\nredis.register_function('{name}', function() end)")
    return name


def test_a_load_removes_the_functions_of_other_versions(queue: JobQueue, admin: redis.Redis) -> None:
    """The first load of a process removes the functions of other versions; those of other programs stay."""
    admin.execute_command("FUNCTION LOAD", "#!lua name=theirs\nredis.register_function('theirs', function() end)")
    for number in range(3):
        older(admin, number)
    submit_and_claim(queue)

    assert 1 == len(libraries(admin))
    assert "theirs" in str(admin.execute_command("FUNCTION LIST"))


def test_two_versions_do_not_remove_each_others_functions_for_ever(queue: JobQueue, admin: redis.Redis) -> None:
    # Later both versions keep theirs.
    for _ in range(2):
        queue.requests.submit(make_spec())
    must_claim(queue)
    admin.execute_command("FUNCTION FLUSH")
    theirs = older(admin, 1)

    assert 2 == must_claim(queue).job_id
    assert theirs in libraries(admin)
    assert 2 == len(libraries(admin))


@pytest.mark.parametrize("refused", ["-fcall", "-function|load", "-function"])
def test_where_the_rules_allow_no_functions_the_claim_is_a_script(
    own_store: OwnStore, admin: redis.Redis, refused: str
) -> None:
    """Where access rules forbid functions, the claim runs as a script, as in a store without functions."""
    # Access rules that were written for an older version remain sufficient.
    admin.execute_command("ACL", "SETUSER", "lab", "on", ">pass", "~*", "&*", "+@all", refused)
    queue = JobQueue(f"{own_store.url}?username=lab&password=pass")
    for _ in range(3):
        queue.requests.submit(make_spec())
    admin.config_resetstat()

    assert [1, 2, 3] == [must_claim(queue).job_id for _ in range(3)]
    assert calls(admin)["evalsha"] >= 3
    assert calls(admin)["fcall"] <= 1, "it is not asked for again"
    queue.close()


@pytest.mark.parametrize("words", ["unknown command '{}', with args beginning with: ", "unsupported command '{}'"])
def test_a_store_without_functions_is_asked_once(
    queue: JobQueue, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A store without functions (Redis 6.2, or a proxy with its own error text) is tried only once."""
    asked = []
    execute = redis.Redis.execute_command

    def as_6_2(self: redis.Redis, *sent: Any, **options: Any) -> Any:
        if str(sent[0]).startswith(("FCALL", "FUNCTION")):
            asked.append(sent[0])
            raise redis.ResponseError(words.format(sent[0]))
        return execute(self, *sent, **options)

    monkeypatch.setattr(redis.Redis, "execute_command", as_6_2)
    for _ in range(3):
        queue.requests.submit(make_spec())

    assert [1, 2, 3] == [must_claim(queue).job_id for _ in range(3)]
    assert ["FCALL"] == asked
    monkeypatch.undo()
    assert [] == libraries(admin)


def test_a_function_that_is_removed_at_once_is_a_script_this_time(
    queue: JobQueue, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that disappears right after its load makes this claim run as a script."""
    queue.requests.submit(make_spec())
    assert 1 == must_claim(queue).job_id
    assert 1 == len(libraries(admin))
    execute, removed = redis.Redis.execute_command, []

    def and_removed(self: redis.Redis, *sent: Any, **options: Any) -> Any:
        found = execute(self, *sent, **options)
        if sent[0] == "FUNCTION LOAD":
            removed.append(execute(admin, "FUNCTION FLUSH"))
        return found

    monkeypatch.setattr(redis.Redis, "execute_command", and_removed)
    admin.execute_command("FUNCTION FLUSH")
    for _ in range(2):
        queue.requests.submit(make_spec())
    admin.config_resetstat()

    assert [2, 3] == [must_claim(queue).job_id for _ in range(2)]
    assert (2, 4) == (len(removed), calls(admin)["fcall"])


@pytest.mark.parametrize("refused", ["-function|list", "-function|delete"])
def test_who_may_not_remove_others_calls_the_function_all_the_same(
    own_store: OwnStore, admin: redis.Redis, refused: str
) -> None:
    # Leaving the others does no harm. Regression: the claim was a script for the lifetime of that process.
    admin.execute_command("ACL", "SETUSER", "lab", "on", ">pass", "~*", "&*", "+@all", refused)
    queue = JobQueue(f"{own_store.url}?username=lab&password=pass")
    for _ in range(2):
        queue.requests.submit(make_spec())
    admin.config_resetstat()

    assert [1, 2] == [must_claim(queue).job_id for _ in range(2)]
    assert {"eval": 0, "evalsha": 0, "fcall": 3} == calls(admin)
    queue.close()


# ---- memory between calls ------------------------------------------------------------------------------------------


class ByScript(SimulatedScripts):
    """Scripts that run every act as a newly loaded script, which can keep no memory."""

    def _script(self, act: str) -> Any:
        if act not in self._registered:
            self._registered[act] = self._client.register_script(whole(act, CLOCK))
        return self._registered[act]


def without_epoch(reply: Any) -> Any:
    """Return a reply without the epoch of the store: it is random."""
    return replace(reply, epoch="") if isinstance(reply, Verdicts) else reply


class Site:
    """Two queues with the same history, whose claims run in two different ways."""

    def __init__(self, url: str, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - the same history each time
        self.clock = SimulatedClock(EPOCH_MS)
        self.queues = [SimulatedQueue(f"{url}?db={number}", self.clock) for number in range(2)]
        self.queues[1].store.scripts = ByScript(self.queues[1].store.client, self.clock)
        self.running: list[Claim] = []
        self.offers: dict[str, Offer] = {}
        self.claimed = 0
        for queue in self.queues:
            queue.recovery.open(0)

    def both(self, act: Any) -> Any:
        """Do the act in both queues. Both results must be the same."""
        outcomes = []
        for queue in self.queues:
            try:
                outcomes.append(without_epoch(act(queue)))
            except GpuQueueError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        return outcomes[0]

    def step(self) -> None:
        """Do a random act, mostly a submit or a claim."""
        self.clock.now_ms += self.chance.choice((1, 1, 1, 50, 1_000, 20_000, 3_600_000))
        acts = (self.submit, self.submit, self.submit, self.claim, self.claim, self.claim, self.claim, self.finish)
        self.chance.choice((*acts, self.serve, self.rule, self.limit, self.tick, self.drain, self.change))()

    def submit(self) -> None:
        """Submit a random job."""
        spec = self._any_spec()
        self.both(lambda queue: queue.requests.submit(spec).id)

    def _any_spec(self) -> JobSpec:
        some = self.chance
        alone, device_filter = some.random() < 0.15, some.choice((None, None, None, *FILTERS))
        return make_spec(
            account=Account(name=some.choice(("ann", "bob", "cid")), uid=1, host="h"),
            mem_bytes=some.choice((1, 2, 6, 12, 20)) * GIB,
            gpus=some.choice((1, 1, 2)) if device_filter is None else 1,
            priority=some.choice(list(Priority)),
            time_limit_s=some.choice((None, None, 60.0, 7200.0)),
            device=device_filter,
            placement=Placement(
                exclusive=alone,
                whole=alone and some.random() < 0.5,
                models=some.choice(((), (), ("A100",), ("T4",))),
                preference=some.choice((None, None, *Preference)),
            ),
            array=Array.parse("0-3%2") if some.random() < 0.1 else None,
            expected_utilisation=some.choice((None, 0.2, 0.9)),
        )

    def serve(self) -> None:
        """Announce a device, or announce it again with other properties."""
        some = self.chance
        number = some.randrange(5)
        uuid = f"GPU-{number}" if number < 4 else "cpu-0"
        kind = DeviceKind.GPU if number < 4 else DeviceKind.CPU
        offer = make_offer(
            device=make_device(uuid, index=number, kind=kind, name=some.choice(("NVIDIA A100", "Tesla T4"))),
            host="nodeA" if number % 2 == 0 else "nodeB",
            external_bytes=some.choice((0, 0, 3)) * GIB,
            slots=some.choice((1, 3, 8)),
        )
        self.offers[uuid] = offer
        self.both(lambda queue: queue.devices.announce(offer, worker=f"w-{uuid}", pid=1, boot_id="b"))
        self.both(lambda queue: queue.devices.heartbeat(offer, (), lease_s=300))

    def claim(self) -> None:
        """Claim for an announced device, often several times in a row."""
        if not self.offers:
            return
        offer = self.chance.choice(list(self.offers.values()))
        for _ in range(self.chance.choice((1, 1, 3))):
            nonce = f"{self.chance.randrange(16**12):012x}"
            words = {"worker": f"w-{offer.device.uuid}", "lease_s": 90_000, "nonce": nonce, "gpus_here": False}
            found = self.both(lambda queue, words=words: queue.runs.seek(offer, **words))
            if isinstance(found, Claim):
                self.claimed += 1
                self.running.append(found)

    def finish(self) -> None:
        """End a random run."""
        if not self.running:
            return
        run = self.running.pop(self.chance.randrange(len(self.running)))
        done = {"state": JobState.SUCCEEDED, "ending": Ending.from_status(0), "duration_s": 10.0, "devices": ()}
        self.both(lambda queue: queue.runs.finish(run.job_id, run.token, **done))

    def rule(self) -> None:
        """Change the half-life, the shares and the placement."""
        words: dict[str, Any] = {
            "half_life_s": self.chance.choice((3600.0, 86400.0)),
            "shares": self.chance.choice(({}, {"ann": 2.0}, {"bob": 3.0})),
            "placement": self.chance.choice((None, *Preference)),
        }
        self.both(lambda queue: queue.rules.set_policy(urgent=None, **words))

    def limit(self) -> None:
        """Change or remove the limits."""
        text = self.chance.choice(("", "", "ann: running_jobs=1", "*: running_gpus=2; @lab: running_mem=30G"))
        pools = self.chance.choice(("", "*: max_mem=16G"))
        limits = Limits.parse(text, pools, {"lab": self.chance.choice((("ann",), ("ann", "bob")))})
        self.both(lambda queue: queue.rules.set_limits(limits))

    def tick(self) -> None:
        """Run the worker's periodic acts."""
        self.both(lambda queue: queue.maintenance.reap(loss_limit=3, lease_s=90_000, tick_s=1e6))
        self.both(lambda queue: queue.maintenance.reserve(after_s=600, most=1))
        self.both(lambda queue: queue.maintenance.promote(after_s=3 * 3600))
        for offer in self.offers.values():
            self.both(lambda queue, offer=offer: queue.devices.heartbeat(offer, (), lease_s=300))

    def drain(self) -> None:
        """Drain or resume a device."""
        for uuid in self.chance.sample(sorted(self.offers), min(1, len(self.offers))):
            if self.chance.random() < 0.3:
                self.both(
                    lambda queue, uuid=uuid: queue.devices.drain([uuid], origin=DrainOrigin.PERSON, why="", by="ann")
                )
            else:
                self.both(lambda queue, uuid=uuid: queue.devices.resume([uuid], origins=list(DrainOrigin)))

    def change(self) -> None:
        """Hold, release, cancel or move a random job, whatever its state."""
        job_id, act = self.chance.randrange(1, 60), self.chance.choice(("hold", "release", "cancel", "move"))
        if act == "move":
            self.both(lambda queue: queue.jobs.move(job_id, front=True))
        else:
            self.both(lambda queue: queue.jobs.change(act, job_id))

    def contents(self) -> list[dict[str, Any]]:
        """Return the contents of both stores, without random ids and each store's own clock values."""
        found = []
        for queue in self.queues:
            with closing(connect(queue.url)) as client:
                held = dump(client)
            for key in [key for key in held if re.search(r":(ev|epoch|facts|idem:\w+)$", key)]:
                del held[key]
            for key, value in held.items():
                if re.search(r":j:\d+$", key):
                    for name in ("ev", "pe"):
                        value.pop(name, None)
            found.append(held)
        return found

    def close(self) -> None:
        """End the connections."""
        for queue in self.queues:
            queue.close()


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_a_stored_claim_function_gives_the_same_jobs_as_a_newly_loaded_script(own_store: OwnStore, seed: int) -> None:
    # Between two claims anything may change: devices, models, limits, shares, reservations, and jobs left to other
    # devices.
    site = Site(own_store.url, seed)
    for _ in range(STEPS):
        site.step()

    ours, theirs = site.contents()
    site.close()

    assert site.claimed > STEPS / 20, "else nothing was compared"
    assert ours == theirs
