"""The findings about a real store with bad settings, and about the queue in a store."""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from collections.abc import Sequence

import pytest
import redis
from bounded import until
from factories import make_offer, make_spec, must_claim, serve
from private_store import StartStore

from gpuqueue.doctor import queue as queue_room
from gpuqueue.doctor import store as store_room
from gpuqueue.doctor.queue import Facts
from gpuqueue.doctor.store import StoreFacts, store_facts
from gpuqueue.errors import StoreNotReady
from gpuqueue.model.event import Cursor
from gpuqueue.model.finding import Finding, Grade, examined
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.diagnostics import queue_facts, store_states
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.safety import check_safety, exposures
from gpuqueue.queue.server_info import server_facts
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timed_call import CallFailed, TimedCall
from gpuqueue.version import VERSION


def settings_for(url: str, **more: str) -> Settings:
    return Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_REDIS_URL": url, **more})


def of_store(url: str) -> dict[str, Finding]:
    """Return the finding of each check of the store."""
    return {each.check: each for each in examined("store", store_facts(settings_for(url)), store_room.CHECKS)}


def of_queue(
    url: str, *, cursor: Cursor | None = None, moving: bool = False, host_runs: bool = True, **settings: str
) -> list[Finding]:
    """Return all findings about the queue in the store."""
    facts = Facts(
        settings=settings_for(url, **settings), queue=queue_facts(url, cursor), moving=moving, host_runs=host_runs
    )
    return list(examined("queue", facts, queue_room.CHECKS))


def the(findings: Sequence[Finding], check: str, about: str = "") -> Finding:
    """Return the only finding of a check about one thing."""
    (found,) = [each for each in findings if (each.check, each.about) == (check, about)]
    return found


# ---- the server ------------------------------------------------------------------------------------------------------


def test_the_store_that_we_start_is_well(store_url: str) -> None:
    """A store started with gpuqueue's settings passes every check. The disk depends on this machine."""
    found = of_store(store_url)

    assert {"answers", "access", "persistence", "writes", "eviction", "memory", "disk", "clock"} == set(found)
    assert {Grade.OK} == {each.grade for name, each in found.items() if name != "disk"}
    assert "appendfsync always" in found["persistence"].seen


@pytest.mark.parametrize(
    ("words", "grade", "seen"),
    [
        (("--appendonly", "no"), Grade.PROBLEM, "appendonly no"),
        (("--appendonly", "yes", "--appendfsync", "everysec"), Grade.NOTE, "last second"),
        (("--appendonly", "yes", "--appendfsync", "no"), Grade.WARNING, "half a minute"),
    ],
)
def test_the_loss_by_a_power_cut_is_reported(
    start_store: StartStore, words: tuple[str, ...], grade: Grade, seen: str
) -> None:
    """The finding says how much acknowledged data a power cut can lose, which depends on the store's settings."""
    found = of_store(start_store(*words))["persistence"]

    assert (grade, True) == (found.grade, seen in found.seen)


@pytest.mark.parametrize(
    ("words", "grade"),
    [
        (("--maxmemory-policy", "allkeys-lru"), Grade.WARNING),
        (("--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"), Grade.PROBLEM),
        (("--maxmemory-policy", "noeviction", "--maxmemory", "100mb"), Grade.OK),
    ],
)
def test_a_store_that_would_forget_jobs_is_found(start_store: StartStore, words: tuple[str, ...], grade: Grade) -> None:
    """An eviction policy is a warning without a memory limit, and a problem with one, because keys are then evicted."""
    assert grade is of_store(start_store(*words))["eviction"].grade


def test_keys_that_were_evicted_are_a_problem(start_store: StartStore) -> None:
    """Evicted keys remain a problem after the policy is corrected, because jobs may be lost."""
    url = start_store("--maxmemory-policy", "allkeys-lru")
    admin = connect(url)
    for number in range(200):
        admin.set(f"x{number}", "x" * 10_000)
    admin.config_set("maxmemory", "1500kb")
    admin.set("one", "more")
    admin.config_set("maxmemory-policy", "noeviction")

    found = of_store(url)["eviction"]

    assert Grade.PROBLEM is found.grade
    assert "compare gpuqueue queue" in found.remedy
    admin.close()


def test_a_store_that_is_nearly_full_is_found(start_store: StartStore) -> None:
    """A nearly full store is found before it refuses jobs. Its own memory limit counts if it has one."""
    url = start_store()
    admin = connect(url)
    admin.setrange("x", 50_000_000, "x")  # large, so that the buffers of clients do not matter
    used_bytes = int(admin.info("memory")["used_memory"])
    for share, grade in ((0.5, Grade.OK), (0.9, Grade.WARNING), (1.2, Grade.PROBLEM)):
        admin.config_set("maxmemory", round(used_bytes / share))
        assert grade is of_store(url)["memory"].grade, share
    admin.close()


def test_a_disk_that_could_not_be_written_is_found(start_store: StartStore) -> None:
    """A disk that the server cannot write to is a problem.

    The server reports it only to clients that write, and in its log.
    """
    url = start_store("--appendonly", "yes", "--appendfsync", "everysec")
    admin = connect(url)
    pid = int(admin.info("server")["process_id"])
    size = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, size[1]))

    def refused() -> bool:
        try:
            admin.set("x", "x" * 1000)
        except redis.ResponseError:
            return True
        return False

    until(refused, what="a write that fails")
    found = of_store(url)["writes"]

    assert Grade.PROBLEM is found.grade
    assert "its log of writes" in found.seen
    resource.prlimit(pid, resource.RLIMIT_FSIZE, size)
    admin.close()


def test_a_replica_is_found(start_store: StartStore) -> None:
    """A replica is found. It answers all reads and accepts no job."""
    url = start_store()
    admin = connect(url)
    admin.replicaof("127.0.0.1", 1)

    assert "the primary" in of_store(url)["answers"].remedy
    admin.close()


def test_a_store_that_hides_its_configuration_is_no_alarm(start_store: StartStore) -> None:
    """A store that forbids CONFIG, such as a hosted one, gets only a note. INFO still shows the other facts."""
    url = start_store("--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb", "--appendonly", "yes")
    admin = connect(url)
    admin.acl_setuser("default", enabled=True, nopass=True, commands=["-config"])

    found = of_store(url)

    assert (Grade.NOTE, "its access rules hide appendfsync") == (found["persistence"].grade, found["persistence"].seen)
    assert Grade.PROBLEM is found["eviction"].grade
    with pytest.raises(StoreNotReady, match="may evict keys"):
        check_safety(url)
    admin.close()


def test_a_store_without_a_password_is_reported(start_store: StartStore) -> None:
    """Any local user can write a job into such a store, which then runs as the worker's account."""
    url = over_tcp(start_store("--appendonly", "yes"))

    assert Grade.WARNING is of_store(url)["access"].grade
    (warned,) = check_safety(url)
    assert "anybody who reaches the store can run code as the worker's account: set a password there" in warned


def test_a_store_with_a_password_is_not(start_store: StartStore) -> None:
    """A password, or the password of an ACL user, is enough."""
    url = over_tcp(start_store("--appendonly", "yes"))
    admin = connect(url)
    admin.config_set("requirepass", "secret")
    admin.close()

    assert [] == check_safety(url.replace("redis://", "redis://:secret@"))


def test_a_certificate_that_is_not_checked_is_reported(store_url: str) -> None:
    """``ssl_cert_reqs=none`` is what people copy when a certificate is refused."""
    found = exposures("rediss://:secret@h/0?ssl_cert_reqs=none", server_facts(store_url))

    assert [True] == ["(ssl_cert_reqs=none): others can pose as it" in seen for seen, _ in found]


def over_tcp(url: str) -> str:
    """Let the server at *url* listen on a port too, and return that address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    admin = connect(url)
    admin.config_set("port", port)
    admin.close()
    return f"redis://127.0.0.1:{port}/0"


@pytest.mark.parametrize(("off_s", "grade"), [(0, Grade.OK), (-3, Grade.OK), (60, Grade.WARNING), (-60, Grade.WARNING)])
def test_a_wrong_clock_is_reported_with_its_effect(store_url: str, off_s: float, grade: Grade) -> None:
    """A wrong clock is a warning that says what depends on it. Leases do not, so no job is in danger."""
    server = server_facts(store_url, lambda: time.time() - off_s)
    facts = StoreFacts(settings=settings_for(store_url), server=server, free_bytes=None)

    (found,) = examined("store", facts, [store_room.clock])

    assert grade is found.grade
    if off_s in {60, -60}:
        assert f"60.0 s {'ahead of' if off_s > 0 else 'behind'} this machine's" in found.seen
        assert "No job is in danger" in found.remedy


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://127.0.0.1:1", "refused"),
        ("redis://ada:hunter2", "no usable address (redis://ada:***)"),
        ("redis://host.invalid:6379", "does not answer"),
    ],
)
def test_an_unreachable_store_is_reported_with_the_reason(url: str, words: str) -> None:
    """Refused, unknown and malformed addresses have different findings. No password is shown."""
    settings = settings_for(url)
    with pytest.raises(CallFailed) as caught:
        TimedCall(lambda: store_facts(settings), 30).result()

    found = store_room.away(settings, caught.value)

    assert Grade.PROBLEM is found.grade
    assert words in found.seen
    assert "hunter2" not in found.seen + found.remedy


def test_a_store_with_a_password_gets_no_advice_to_start_it(start_store: StartStore) -> None:
    """For a store that requires a password the remedy is the address, not a start, because the store runs."""
    settings = settings_for(start_store("--requirepass", "secret"))
    with pytest.raises(CallFailed) as caught:
        TimedCall(lambda: store_facts(settings), 30).result()

    found = store_room.away(settings, caught.value)

    assert "password" in found.seen
    assert "GPUQUEUE_REDIS_URL" in found.remedy


# ---- the queue in the store ------------------------------------------------------------------------------------------


def test_a_queue_that_is_well_needs_nothing(queue: JobQueue) -> None:
    """A queue with heartbeats from its device, a running job and a working reaper passes every check."""
    serve(queue)
    queue.requests.submit(make_spec())
    must_claim(queue)
    queue.maintenance.reap(loss_limit=3, lease_s=300, tick_s=10)

    found = of_queue(queue.url)

    assert {Grade.OK} == {each.grade for each in found}
    assert [name.__name__ for name in queue_room.CHECKS] == [each.check for each in found]


def test_a_store_that_was_never_opened_is_found(start_store: StartStore) -> None:
    """A store that was never opened is a problem, because it refuses every submit."""
    found = the(of_queue(start_store()), "opened")

    assert Grade.PROBLEM is found.grade
    assert found.remedy.startswith("gpuqueue up")


def test_a_rebuild_is_reported_until_jobs_start_again(start_store: StartStore) -> None:
    """The finding says what to do if a rebuild does not finish, and afterwards why no job starts during the pause."""
    queue = JobQueue(start_store())
    epoch = queue.recovery.begin()
    on_its_way = the(of_queue(queue.url), "opened")
    queue.recovery.open(100_001, epoch=epoch, last=1, pause_s=300)
    paused = the(of_queue(queue.url), "opened")
    admin = connect(queue.url)
    admin.hset(keys.META, "claims", queue.now_ms() - 1)
    over = the(of_queue(queue.url), "opened")
    admin.hset(keys.META, "reap", queue.now_ms())

    assert (Grade.PROBLEM, "the store lost its data") == (on_its_way.grade, on_its_way.seen.partition(" and ")[0])
    assert "gpuqueue up" in on_its_way.remedy
    assert Grade.NOTE is paused.grade
    assert "jobs start again in 4:5" in paused.seen or "5:00" in paused.seen
    assert (Grade.NOTE, True) == (over.grade, over.seen.endswith("with the next check of a worker, within seconds"))
    assert Grade.OK is the(of_queue(queue.url), "opened").grade
    admin.close()
    queue.close()


def test_the_history_of_another_store_is_found(queue: JobQueue) -> None:
    """A history that belongs to another store is a problem.

    Nothing is recorded in it, so that two histories do not mix.
    """
    found = the(of_queue(queue.url, cursor=Cursor(epoch="another", last_id="5-0")), "outbox")

    assert Grade.PROBLEM is found.grade
    assert "GPUQUEUE_DATABASE_URL" in found.remedy


def test_another_layout_is_found(queue: JobQueue) -> None:
    """A store with another layout version is a problem. A store that the scripts write has the right one."""
    assert Grade.OK is the(of_queue(queue.url), "opened").grade
    admin = connect(queue.url)
    admin.hset(keys.META, "layout", "2")

    assert Grade.PROBLEM is the(of_queue(queue.url), "opened").grade
    admin.close()


def set_seen(queue: JobQueue, host: str, uuid: str, age_ms: int) -> None:
    """Set the last heartbeat of a device to *age_ms* ago."""
    admin = connect(queue.url)
    total, headroom, external, seen, rest = str(admin.hget(keys.host_devices(host), uuid)).split(":", 4)
    admin.hset(keys.host_devices(host), uuid, f"{total}:{headroom}:{external}:{int(seen) - age_ms}:{rest}")
    admin.close()


def test_a_silent_worker_is_worse_while_it_holds_a_job(queue: JobQueue) -> None:
    """A device without heartbeats is a warning, and a problem while it holds a job.

    The limit follows the heartbeat setting, and the remedy names the host on which to type it.
    """
    serve(queue)
    set_seen(queue, "nodeA", "GPU-0", 25_000)
    assert Grade.OK is the(of_queue(queue.url), "devices").grade
    set_seen(queue, "nodeA", "GPU-0", 10_000)
    idle = the(of_queue(queue.url), "devices", "nodeA 0")
    assert (Grade.WARNING, True) == (idle.grade, idle.remedy.startswith("on nodeA: "))

    serve(queue)
    queue.requests.submit(make_spec())
    must_claim(queue)
    set_seen(queue, "nodeA", "GPU-0", 40_000)
    holding = the(of_queue(queue.url, GPUQUEUE_HOST="nodeA"), "devices", "nodeA 0")

    assert (Grade.PROBLEM, "gpuqueue up") == (holding.grade, holding.remedy)
    assert "it holds job 1" in holding.seen


def test_a_machine_that_was_taken_down_around_its_jobs_is_no_alarm(queue: JobQueue) -> None:
    """After ``down --leave-jobs`` a silent worker gets only a note, because a user stopped it."""
    serve(queue)
    queue.requests.submit(make_spec())
    must_claim(queue)
    queue.devices.drain(["GPU-0"], origin=DrainOrigin.DOWN, why="going down", by="ada")
    set_seen(queue, "nodeA", "GPU-0", 40_000)

    assert Grade.NOTE is the(of_queue(queue.url), "devices", "nodeA 0").grade


def test_a_device_in_trouble_is_reported_with_the_workers_reason(queue: JobQueue) -> None:
    """A device with trouble is a warning with the worker's text, because the worker knows the cause."""
    serve(queue, make_offer(trouble="it is hot: 95 °C"))

    found = the(of_queue(queue.url), "devices", "nodeA 0")

    assert (Grade.WARNING, True) == (found.grade, "it is hot: 95 °C" in found.seen)


@pytest.mark.parametrize(
    ("moving", "host_runs", "grade", "fixable"),
    [(False, True, Grade.WARNING, True), (True, True, Grade.NOTE, False), (False, False, Grade.NOTE, False)],
)
def test_a_killed_down_is_distinguished_from_one_in_progress(
    queue: JobQueue, *, moving: bool, host_runs: bool, grade: Grade, fixable: bool
) -> None:
    """A drain by ``down`` is a warning only if the host process runs and no ``down`` is at work."""
    serve(queue)
    queue.devices.drain(["GPU-0"], origin=DrainOrigin.DOWN, why="going down", by="ada")

    facts = of_queue(queue.url, moving=moving, host_runs=host_runs, GPUQUEUE_HOST="nodeA")

    found = the(facts, "devices", "nodeA 0")
    assert (grade, fixable) == (found.grade, found.fixable)


def test_what_a_person_drained_is_no_fault(queue: JobQueue) -> None:
    """A user's drain gets a note with the user, the reason and the command that ends it.

    Other findings about the device are reported too.
    """
    serve(queue)
    queue.devices.drain(["GPU-0"], origin=DrainOrigin.PERSON, why="new fan", by="ada")
    queue.devices.drain(["GPU-0"], origin=DrainOrigin.DOWN, why="going down", by="bob")

    found = [each for each in of_queue(queue.url, GPUQUEUE_HOST="nodeA") if each.about == "nodeA 0"]

    assert [(Grade.NOTE, False), (Grade.WARNING, True)] == [(each.grade, each.fixable) for each in found]
    assert "drained by ada" in found[0].seen
    assert found[0].seen.endswith(": new fan")
    assert "gpuqueue resume nodeA:0" in found[0].remedy


def test_a_device_that_drained_itself_is_warned_of(queue: JobQueue) -> None:
    """A device that was drained after several jobs died on it is a warning. A user must examine it."""
    serve(queue)
    queue.devices.drain(["GPU-0"], origin=DrainOrigin.DEATHS, why="job 1, 2 and 3", by="")

    found = the(of_queue(queue.url), "devices", "nodeA 0")

    assert (Grade.WARNING, True) == (found.grade, "gpuqueue resume nodeA:0" in found.remedy)


def test_leases_that_nobody_takes_back_are_found(queue: JobQueue) -> None:
    """Expired leases are a problem, except during the grace period of a reaper that was away."""
    serve(queue)
    queue.requests.submit(make_spec())
    must_claim(queue)
    admin = connect(queue.url)
    admin.zadd(keys.LEASES, {"1": queue.now_ms() - 60_000})
    late = the(of_queue(queue.url), "leases")
    admin.hset(keys.META, "grace", str(queue.now_ms() + 60_000))
    spared = the(of_queue(queue.url), "leases")
    admin.zadd(keys.LEASES, {"1": queue.now_ms() - 1_000})
    admin.hdel(keys.META, "grace")
    fresh = the(of_queue(queue.url), "leases")

    assert [Grade.PROBLEM, Grade.NOTE, Grade.OK] == [late.grade, spared.grade, fresh.grade]
    assert "job 1 " in late.seen
    admin.close()


def test_a_reaper_that_is_gone_is_missed_only_while_something_runs(queue: JobQueue) -> None:
    """A missing reaper is a warning only while jobs run. Otherwise there are no leases to reap."""
    serve(queue)
    admin = connect(queue.url)
    admin.hset(keys.META, "reap", str(queue.now_ms() - 120_000))
    idle = the(of_queue(queue.url), "reaper")
    queue.requests.submit(make_spec())
    must_claim(queue)
    busy = the(of_queue(queue.url), "reaper")

    assert [Grade.OK, Grade.WARNING] == [idle.grade, busy.grade]
    admin.close()


def test_jobs_that_nobody_could_run_are_found(queue: JobQueue) -> None:
    """Jobs that wait without any device are a warning. Submit accepts them, but a user must start a worker."""
    queue.requests.submit(make_spec())

    assert Grade.WARNING is the(of_queue(queue.url), "waiting").grade


def test_a_recorder_that_is_behind_is_found_by_what_waits_longest(queue: JobQueue) -> None:
    """A slow recorder is found by the age of the oldest unrecorded event in the outbox.

    Events that the history has already read do not count, even if they are still in the outbox.
    """
    epoch = queue.epoch()
    assert epoch is not None
    admin = connect(queue.url)
    for age_s in (700, 60, 1):
        admin.xadd(keys.OUTBOX, {"act": "x"}, id=f"{queue.now_ms() - age_s * 1000}-0")
    ids = [entry for entry, _ in admin.xrange(keys.OUTBOX)]

    unread = [
        the(of_queue(queue.url, cursor=cursor), "outbox").grade
        for cursor in (
            None,
            Cursor(epoch="another store's", last_id=ids[2]),
            Cursor(epoch=epoch, last_id=ids[0]),
            Cursor(epoch=epoch, last_id=ids[1]),
            Cursor(epoch=epoch, last_id=ids[2]),
        )
    ]

    assert [Grade.PROBLEM, Grade.PROBLEM, Grade.WARNING, Grade.OK, Grade.OK] == unread
    admin.close()


def test_a_history_that_lags_is_found(queue: JobQueue) -> None:
    """Jobs that stay in the store long after their end are a warning. They remain until the history has them."""
    queue.requests.submit(make_spec())
    queue.jobs.cancel(1)
    just_ended = the(of_queue(queue.url), "ended")
    admin = connect(queue.url)
    admin.zadd(keys.ENDED, {"1": queue.now_ms() - 60_000})

    assert [Grade.OK, Grade.WARNING] == [just_ended.grade, the(of_queue(queue.url), "ended").grade]
    admin.close()


def test_workers_report_their_version_and_clock(queue: JobQueue) -> None:
    """Workers announce their version and clock when they start. Differences from this machine's are reported."""
    serve(queue)
    (device,) = queue_facts(queue.url).devices
    assert VERSION == device.version
    assert device.clock_ahead_s is not None
    assert 5 > abs(device.clock_ahead_s)  # both clocks are this machine's

    admin = connect(queue.url)
    reported = {**json.loads(str(admin.hget(keys.FACTS, "GPU-0"))), "version": "9.9", "clock_ahead_s": 1000.5}
    admin.hset(keys.FACTS, "GPU-0", json.dumps(reported))
    found = of_queue(queue.url)

    assert (Grade.WARNING, True) == (the(found, "versions").grade, "9.9 on nodeA" in the(found, "versions").seen)
    assert "ahead of the store's" in the(found, "clocks", "nodeA").seen
    admin.close()


def test_states_are_those_of_the_current_runs(queue: JobQueue) -> None:
    """`store_states` returns the token of each current run.

    A waiting job has an empty token, and an unknown job no entry.

    For a store that was never opened the result is None.
    """
    serve(queue)
    queue.requests.submit(make_spec())
    queue.requests.submit(make_spec())
    token = must_claim(queue).token

    found = store_states(queue.url, [1, 2, 3])

    assert found is not None
    assert {1: token, 2: ""} == {job_id: state.token for job_id, state in found.items()}
    connect(queue.url).flushall()
    assert store_states(queue.url, [1]) is None
