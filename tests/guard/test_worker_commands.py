"""What a real worker and a real recorder ask the store for, job after job.

test_store_commands.py holds what each act costs; it calls them itself, once each. A worker that asked ten times before
each claim would pass there: here it is listened to.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from guard.bounds import Bound
from guard.one_life import END, NO_PART_OF_IT
from own_store import OwnStore
from site_of_one import Site

from gpuqueue.queue.connect import connect
from gpuqueue.queue.scripts import ACTS, whole
from gpuqueue.settings.settings import LONGEST_BEAT_S
from gpuqueue.text.units import MIB

#: One after the other: the next is submitted when the book has the last.
JOBS = 40
#: Those before we listen.
FIRST = 3
#: Looks for work. Of each job's one finds it, one more is made at once for the next, and one for each ring: of its
#: submit, of its end, and of the worker itself when it has let go of it. Rings that come while it looks are one: how
#: many do depends on who else is on the machine, that it is no more does not. Those of the job before we listened may
#: be heard, those of the last may not. Measured: 3.2 to 3.8 for each job.
LOOKS = Bound(2 * JOBS - 1, 4 * JOBS + 2)
#: What Celery tells its watchers of each job: received, started, succeeded. Those of one moment are told at once.
EVENTS = Bound(1, 3 * JOBS + 3)
#: What Celery does for itself, by its clock: its beats and the queues by which it is told things. A transaction of ours
#: would show by what is in it.
CELERYS = ("celery's worker", "celery's script", "script", "multi", "exec", "brpop")
#: Batches of the recorder: one for each job, as the next waits for it, or more, up to one for each of its four steps.
BATCHES = Bound(JOBS - 1, 4 * JOBS + 1)
#: For each time that the recorder reads the outbox: it asks for the epoch to see whether the store is open, whether it
#: is the book's, and whose events it reads; and how far the book was said to be.
A_TURN = {"get": 3, "hget": 1, "settle": 1}
#: At most so often what comes by the clock comes while we listen: a beat and a tick, and no look without a ring.
SELDOM = {"GPUQUEUE_BEAT": f"{LONGEST_BEAT_S:g}s", "GPUQUEUE_LEASE": "10h", "GPUQUEUE_POLL": "1h"}
#: What a beat and a tick ask for. Mostly there is one of them, or none: one question more for each job would be forty.
A_BEAT = {"beat": 1, "age": 1, "reap": 1, "reserve": 1, "get": 2, "hget": 1, "multi": 1, "exec": 1}
#: A beat also asks of each run that has ended whether the book has it: once, or twice where it did not have it yet.
ENDED = JOBS + FIRST
DIGESTS = {hashlib.sha1(whole(act).encode(), usedforsecurity=False).hexdigest(): act for act in ACTS}
#: How long an idle worker is watched, in seconds, and its looks for work meanwhile: none by the clock, but the rings of
#: the last job may still come, which are four at most as above. Else it asks for beats alone.
IDLE_S, IDLE_LOOKS = 3.0, Bound(0, 4)
#: How often all its threads wake up in a second. Each takes a processor from the jobs for a moment. Twice for the
#: doorbell, which looks whether it should stop, once to see whether its parent is there; with Celery three times more
#: for its own loop. Measured: 3 and 6; a busy machine makes it fewer. The range is wide, as Celery's part is not ours,
#: and narrow enough for what it is against: a wait that was made a hundredth, or a loop that looks instead.
WAKES = Bound(0, 40)


@dataclass(kw_only=True)
class Heard:
    """How often each was asked for: scripts by their acts, commands by their names."""

    worker: Counter[str]
    others: Counter[str]


def named(command: str) -> str:
    """Return the act of a script, the channel's kind of what Celery tells, and else the command."""
    words = command.split(maxsplit=2)
    if words[0].lower() == "evalsha":
        return DIGESTS.get(words[1], "celery's script")
    if words[0].lower() == "fcall":
        return words[1].split("_")[1]
    told = re.match(r"/\d+\.celeryev/(\w+)\.", words[1]) if words[0].lower() == "publish" else None
    return f"celery's {told[1]}" if told is not None else words[0].lower()


def through(site: Site, jobs: int) -> None:
    """Take *jobs* through, one after the other."""
    for _ in range(jobs):
        site.until_recorded(site.queue.submit(make_spec(argv=("true",), mem_bytes=MIB)).id)


def listen(store: OwnStore, site: Site, act: Callable[[], object]) -> Heard:
    """Return what is heard during *act*. The worker is known by its way in: it alone uses the socket."""
    admin = connect(store.url)
    reserve = next(digest for digest, act in DIGESTS.items() if act == "reserve")
    until(lambda: all(admin.script_exists(reserve)), what="the last act of the first tick")
    through(site, FIRST)  # by then all scripts are known that a job needs
    heard = Heard(worker=Counter(), others=Counter())
    with admin.monitor() as listening:
        act()
        admin.echo(END)
        for said in listening.listen():
            if END in said["command"]:
                break
            name = named(said["command"])
            if said["client_type"] != "lua" and name not in NO_PART_OF_IT:
                (heard.worker if said["client_type"] == "unix" else heard.others)[name] += 1
    admin.close()
    return heard


def asks_for_beats_alone(worker: Counter[str]) -> int:
    """Fail if there is more than beats and ticks; return how many there may have been."""
    beats = worker["beat"] + 1  # one has begun before we listened, or goes on after
    assert worker.pop("hmget", 0) <= ENDED + beats
    assert set(worker) <= set(A_BEAT)
    for name, asked in worker.items():
        assert asked <= A_BEAT[name] * beats, f"{name}: {asked} in {beats} beats"
    return beats


@pytest.mark.full
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "celery"])
def test_a_real_worker_asks_for_no_more_than_agreed(own_store: OwnStore, tmp_path: Path, *, plain: bool) -> None:
    """Ten questions more before each look for work, or three before each start, went unnoticed here once."""
    site = Site(tmp_path / "state", own_store.listen(), **SELDOM)
    try:
        site.start_recorder()
        site.environ["GPUQUEUE_REDIS_URL"] = own_store.url
        site.start_worker(plain=plain)
        heard = listen(own_store, site, lambda: through(site, JOBS))
    finally:
        site.stop()

    worker, others = heard.worker, heard.others
    LOOKS.hold(worker.pop("claim"), f"looks for work of {JOBS} jobs")
    if not plain:
        EVENTS.hold(worker.pop("celery's task"), f"events of Celery for {JOBS} jobs")
        for name in CELERYS:
            worker.pop(name, None)
    assert [JOBS, JOBS] == [worker.pop("started"), worker.pop("finish")]
    beats = asks_for_beats_alone(worker)

    assert JOBS == others.pop("submit")
    BATCHES.hold(others["settle"], f"batches of {JOBS} jobs")
    turns = others.pop("xread") + 1  # one has begun before we listened
    for sender in ("time", "hset"):  # who sends messages says that it is there, by the clock
        others.pop(sender, None)
    for name in ("age", "reap", "reserve"):  # the recorder ticks as well
        assert others.pop(name, 0) <= beats + 1
    turns += beats  # a tick asks for the epoch once
    assert set(others) == set(A_TURN)
    for name, usual in A_TURN.items():
        assert others[name] <= usual * turns, f"{name}: {others[name]} in {turns} turns of the recorder"


def wakes(pid: int) -> dict[str, int]:
    """Return how often each thread of a process has slept so far, and so woken up."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            lines = (task / "status").read_text().splitlines()
            found[task.name] = next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
    return found


@pytest.mark.full
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "celery"])
def test_an_idle_worker_sleeps(own_store: OwnStore, tmp_path: Path, *, plain: bool) -> None:
    """It stays for weeks beside the jobs: what it does each second it does six hundred thousand times in one."""
    site = Site(tmp_path / "state", own_store.listen(), **SELDOM)
    a_second = []

    def idle() -> None:
        since_s, before = time.monotonic(), wakes(worker.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(IDLE_S)
        found = sum(count - before.get(thread, 0) for thread, count in wakes(worker.pid).items())
        a_second.append(found / (time.monotonic() - since_s))

    try:
        site.start_recorder()
        site.environ["GPUQUEUE_REDIS_URL"] = own_store.url
        worker = site.start_worker(plain=plain)
        heard = listen(own_store, site, idle)
    finally:
        site.stop()

    IDLE_LOOKS.hold(heard.worker.pop("claim", 0), f"looks for work in {IDLE_S:g} idle seconds")
    WAKES.hold(a_second[0], "times that an idle worker wakes up in a second")
    for name in (*CELERYS, "celery's task"):
        if not plain:
            heard.worker.pop(name, None)
    asks_for_beats_alone(heard.worker)
