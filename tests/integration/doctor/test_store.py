"""The findings about a real store with bad settings, and about the queue in a store."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from bounded import until
from factories import make_offer, make_spec, must_claim, serve
from findings import by_check, findings, the
from private_store import StartStore

from gpuqueue.doctor import queue as queue_room
from gpuqueue.doctor import store as store_room
from gpuqueue.doctor.examination import begin
from gpuqueue.doctor.site import Site
from gpuqueue.embedded.machine import Machine
from gpuqueue.errors import StoreNotReady
from gpuqueue.model.event import Cursor
from gpuqueue.model.finding import Finding, Grade
from gpuqueue.queue import keys, safety
from gpuqueue.queue.connect import connect
from gpuqueue.queue.diagnostics import queue_facts, store_states
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.safety import check_safety, exposures, server_facts
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.version import VERSION


def environ_for(url: str, **more: str) -> dict[str, str]:
    return {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_REDIS_URL": url, **more}


def of_store(url: str) -> dict[str, Finding]:
    """Return the finding of each check of the store."""
    return dict(by_check(store_room.CHECKS, Site(Settings.load(environ_for(url)))))


def of_queue(url: str, *, cursor: Cursor | None = None, **settings: str) -> list[Finding]:
    """Return all findings about the queue in the store."""
    site = Site(Settings.load(environ_for(url, **settings)))
    site.queue = lambda: queue_facts(url, cursor)
    return findings(queue_room.CHECKS, site)


# ---- the server ------------------------------------------------------------------------------------------------------


def test_the_store_that_we_start_is_well(store_url: str) -> None:
    """A store started with gpuqueue's settings passes every check. The disk depends on this machine."""
    found = of_store(store_url)

    expected = {"answers", "access", "persistence", "transactions", "writes", "eviction", "memory", "disk", "clock"}
    assert expected == set(found)
    assert {Grade.OK} == {each.grade for name, each in found.items() if name != "disk"}
    assert "appendfsync always" in found["persistence"].seen


EVICTS = ("--maxmemory-policy", "allkeys-lru")
LIMITED = ("--maxmemory", "100mb")


@pytest.mark.parametrize(
    ("words", "check", "grade", "seen"),
    [
        (("--appendonly", "no"), "persistence", Grade.PROBLEM, "appendonly no"),
        (("--appendonly", "yes", "--appendfsync", "everysec"), "persistence", Grade.NOTE, "last second"),
        (("--appendonly", "yes", "--appendfsync", "no"), "persistence", Grade.WARNING, "half a minute"),
        # Keys are evicted only at a memory limit.
        (EVICTS, "eviction", Grade.WARNING, "it has no memory limit yet"),
        ((*EVICTS, *LIMITED), "eviction", Grade.PROBLEM, "it would delete jobs when its memory is full"),
        (("--maxmemory-policy", "noeviction", *LIMITED), "eviction", Grade.OK, "noeviction"),
        (("--replicaof", "127.0.0.1", "1"), "answers", Grade.PROBLEM, "is a replica"),
    ],
)
def test_a_store_with_bad_settings_is_found(
    start_store: StartStore, words: tuple[str, ...], check: str, grade: Grade, seen: str
) -> None:
    """The finding says what can be lost by a power cut or by an eviction. A replica answers reads and takes no job."""
    found = of_store(start_store(*words))[check]

    assert (grade, True) == (found.grade, seen in found.seen)


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


@pytest.mark.parametrize(
    ("rule", "grade"),
    [
        ({"enabled": False}, Grade.PROBLEM),  # as `user default off` in a file of rules
        ({"enabled": False, "categories": ["+@all"], "keys": ["*"]}, Grade.OK),
        ({"enabled": True, "passwords": ["+x"], "categories": ["+@all"], "keys": ["other:*"]}, Grade.PROBLEM),
        ({"enabled": True, "passwords": ["+x"], "categories": ["+@all"], "keys": ["{gq}:*"]}, Grade.OK),
    ],
)
def test_a_restart_that_would_drop_transactions_is_found(
    start_store: StartStore, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any], grade: Grade
) -> None:
    """Redis 7.0 was seen to read a third of the keys after a restart with ``user default off``; Valkey 9.1 all."""
    url = start_store("--appendonly", "yes", "--user", "queue", "on", ">pw", "~*", "&*", "+@all")
    url = f"{url}?username=queue&password=pw"
    admin = connect(url)
    admin.acl_setuser("default", reset=True, **rule)
    assert Grade.OK is of_store(url)["transactions"].grade, "this server reads them"

    monkeypatch.setattr(safety, "_READS_ALL", (99, 0))  # as other servers
    found = of_store(url)["transactions"]
    assert grade is found.grade
    assert grade is Grade.OK or "ACL SETUSER default off ~* &* +@all" in found.remedy

    admin.acl_setuser("queue", enabled=True, passwords=["+pw"], categories=["+@all", "-@admin"], keys=["*"])
    assert Grade.NOTE is of_store(url)["transactions"].grade
    admin.close()


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
    site = Site(Settings.load(environ_for(store_url)))
    site.server = lambda: server_facts(store_url, lambda: time.time() - off_s)

    (found,) = findings([store_room.clock], site)

    assert grade is found.grade
    if grade is Grade.WARNING:
        assert f"60.0 s {'ahead of' if off_s > 0 else 'behind'} this machine's" in found.seen
        assert "No job is in danger" in found.remedy


def away(url: str) -> Finding:
    """Return the only finding about a store that does not answer as it should."""
    (finding,) = begin("store", Site(Settings.load(environ_for(url))), 30)()
    return finding


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
    found = away(url)

    assert (Grade.PROBLEM, True) == (found.grade, words in found.seen)
    assert "hunter2" not in found.seen + found.remedy


def test_a_store_with_a_password_gets_no_advice_to_start_it(start_store: StartStore) -> None:
    """For a store that requires a password the remedy is the address, not a start, because the store runs."""
    found = away(start_store("--requirepass", "secret"))

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


def submitted(queue: JobQueue) -> None:
    queue.requests.submit(make_spec())


def hot(queue: JobQueue) -> None:
    serve(queue, make_offer(trouble="it is hot: 95 °C"))


def claimed(queue: JobQueue) -> None:
    """Let a device of the queue hold a job."""
    serve(queue)
    queue.requests.submit(make_spec())
    must_claim(queue)


def silent(queue: JobQueue, age_ms: int, begin: Callable[[JobQueue], None] = serve) -> None:
    """Set the last heartbeat of a device to *age_ms* ago."""
    begin(queue)
    admin, devices = connect(queue.url), keys.host_devices("nodeA")
    total, headroom, external, seen, rest = str(admin.hget(devices, "GPU-0")).split(":", 4)
    admin.hset(devices, "GPU-0", f"{total}:{headroom}:{external}:{int(seen) - age_ms}:{rest}")
    admin.close()


def drained(queue: JobQueue, origin: DrainOrigin, begin: Callable[[JobQueue], None] = serve) -> None:
    begin(queue)
    queue.devices.drain(["GPU-0"], origin=origin, why="new fan", by="ada")


def down_around_a_job(queue: JobQueue) -> None:
    drained(queue, DrainOrigin.DOWN, claimed)


def overdue(queue: JobQueue, age_ms: int, **meta: int) -> None:
    """Let a lease expire *age_ms* ago; *meta* are times in the future, in milliseconds."""
    claimed(queue)
    admin = connect(queue.url)
    admin.zadd(keys.LEASES, {"1": queue.now_ms() - age_ms})
    for name, left_ms in meta.items():
        admin.hset(keys.META, name, str(queue.now_ms() + left_ms))
    admin.close()


def reaped(queue: JobQueue, begin: Callable[[JobQueue], None]) -> None:
    begin(queue)
    admin = connect(queue.url)
    admin.hset(keys.META, "reap", str(queue.now_ms() - 120_000))
    admin.close()


def ended(queue: JobQueue, age_ms: int) -> None:
    queue.requests.submit(make_spec())
    queue.jobs.cancel(1)
    admin = connect(queue.url)
    admin.zadd(keys.ENDED, {"1": queue.now_ms() - age_ms})
    admin.close()


def of_another_version(queue: JobQueue) -> None:
    """Let a worker have reported another version, and another clock than the store's."""
    serve(queue)
    admin = connect(queue.url)
    reported = {**json.loads(str(admin.hget(keys.FACTS, "GPU-0"))), "version": "9.9", "clock_ahead_s": 1000.5}
    admin.hset(keys.FACTS, "GPU-0", json.dumps(reported))
    admin.hset(keys.META, "layout", "2")
    admin.close()


HERE = {"GPUQUEUE_HOST": "nodeA"}
DEVICE = ("devices", "nodeA 0")


@pytest.mark.parametrize(
    ("happen", "settings", "check", "grade", "seen", "remedy"),
    [
        # The limit follows the heartbeat setting. The remedy names the host on which to type it.
        (partial(silent, age_ms=25_000), {}, ("devices", ""), Grade.OK, "1 of 1 take jobs", ""),
        (partial(silent, age_ms=35_000), {}, DEVICE, Grade.WARNING, "has been silent for", "on nodeA: "),
        (partial(silent, age_ms=40_000, begin=claimed), HERE, DEVICE, Grade.PROBLEM, "it holds job 1", "gpuqueue up"),
        # A user has stopped these workers.
        (partial(silent, age_ms=40_000, begin=down_around_a_job), {}, DEVICE, Grade.NOTE, "took its machine down", ""),
        # The worker knows the cause.
        (hot, {}, DEVICE, Grade.WARNING, "it is hot: 95 °C", "it comes back"),
        # A user must examine a device on which several jobs died. A user's own drain is no fault.
        (partial(drained, origin=DrainOrigin.DEATHS), {}, DEVICE, Grade.WARNING, "new fan", "look at those jobs' logs"),
        (partial(drained, origin=DrainOrigin.PERSON), {}, DEVICE, Grade.NOTE, "by ada", "gpuqueue resume nodeA:0"),
        (of_another_version, {}, ("versions", ""), Grade.WARNING, "9.9 on nodeA", "install one version"),
        (of_another_version, {}, ("clocks", "nodeA"), Grade.WARNING, "1000.5 s ahead of the store's", "synchronise"),
        # A store that the scripts write has the right layout.
        (serve, {}, ("opened", ""), Grade.OK, "layout ", ""),
        (of_another_version, {}, ("opened", ""), Grade.PROBLEM, "its layout is 2", "use the version"),
        # Submit accepts these jobs, but a user must start a worker.
        (partial(ended, age_ms=0), {}, ("waiting", ""), Grade.OK, "0 waiting, 0 active", ""),
        (submitted, {}, ("waiting", ""), Grade.WARNING, "1 waiting, 0 active, and no worker has", "gpuqueue up"),
        # A reaper that was away gives them time.
        (partial(overdue, age_ms=60_000), {}, ("leases", ""), Grade.PROBLEM, "of job 1 ", "gpuqueue up"),
        (partial(overdue, age_ms=60_000, grace=60_000), {}, ("leases", ""), Grade.NOTE, "they have another ", ""),
        (partial(overdue, age_ms=1_000), {}, ("leases", ""), Grade.OK, "about to be reclaimed", ""),
        # Without jobs there are no leases to reap.
        (partial(reaped, begin=serve), {}, ("reaper", ""), Grade.OK, "checked 2:0", ""),
        (partial(reaped, begin=claimed), {}, ("reaper", ""), Grade.WARNING, "nothing checks for", "gpuqueue up"),
        # They remain until the history has them.
        (partial(ended, age_ms=0), {}, ("ended", ""), Grade.OK, "1 ended jobs", ""),
        (partial(ended, age_ms=60_000), {}, ("ended", ""), Grade.WARNING, "1 ended jobs", "they take up its memory"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_queue(
    queue: JobQueue,
    happen: Callable[[JobQueue], Any],
    settings: dict[str, str],
    check: tuple[str, str],
    grade: Grade,
    seen: str,
    remedy: str,
) -> None:
    """Each fault is found, with its remedy, and what looks like one and is none is not."""
    happen(queue)

    finding = the(of_queue(queue.url, **settings), *check)

    assert grade is finding.grade
    assert seen in finding.seen
    assert finding.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("is_locked", "host_runs", "grade", "fixable"),
    [(False, True, Grade.WARNING, True), (True, True, Grade.NOTE, False), (False, False, Grade.NOTE, False)],
)
def test_a_killed_down_is_distinguished_from_one_in_progress(
    queue: JobQueue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_locked: bool,
    host_runs: bool,
    grade: Grade,
    fixable: bool,
) -> None:
    """A drain by ``down`` is a warning only if the host process runs and no ``down`` is at work.

    A drain by a user has a finding of its own.
    """
    drained(queue, DrainOrigin.PERSON)
    queue.devices.drain(["GPU-0"], origin=DrainOrigin.DOWN, why="going down", by="bob")
    if host_runs:
        monkeypatch.setattr(Machine, "host_running", lambda _: ProcessIdentity.of(os.getpid()))

    with (tmp_path / "up.lock").open("w") as lock:
        if is_locked:
            fcntl.flock(lock, fcntl.LOCK_EX)
        found = [
            each
            for each in of_queue(queue.url, GPUQUEUE_HOST="nodeA", GPUQUEUE_STATE_DIR=str(tmp_path))
            if each.about == "nodeA 0"
        ]

    assert [(Grade.NOTE, False), (grade, fixable)] == [(each.grade, each.fixable) for each in found]


def test_the_history_of_another_store_is_found(queue: JobQueue) -> None:
    """Nothing is recorded in it, so that two histories do not mix."""
    found = the(of_queue(queue.url, cursor=Cursor(epoch="another", last_id="5-0")), "outbox")

    assert (Grade.PROBLEM, True) == (found.grade, "GPUQUEUE_DATABASE_URL" in found.remedy)


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


def test_workers_report_their_version_and_clock(queue: JobQueue) -> None:
    """Workers announce their version and clock when they start."""
    serve(queue)
    (device,) = queue_facts(queue.url).devices

    assert VERSION == device.version
    assert device.clock_ahead_s is not None
    assert 5 > abs(device.clock_ahead_s)  # both clocks are this machine's


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
