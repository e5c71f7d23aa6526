"""Tests that bound what a real worker and a real recorder ask the store for, job after job.

test_store_commands.py bounds what each act costs, and calls each act once itself. It would not notice a worker that
asks ten times before each claim. This module monitors the store.
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
from gpuqueue.settings.sources import LONGEST_HEARTBEAT_S
from gpuqueue.text.units import MIB

#: The jobs run one after the other: the next is submitted when the history has the last.
JOBS = 40
#: The jobs before the monitor starts.
FIRST = 3
#: Claim attempts. For each job, one attempt finds it, one follows at once for the next job, and one follows each
#: message on the wake-up channel: of the submit, and of the end. Messages that arrive during an attempt count as one,
#: so the lower number depends on the machine's load and the upper one does not. Attempts for the job before the monitor
#: started may be counted, those for the last job may not.
CLAIMS = Bound(2 * JOBS - 1, 3 * JOBS + 2)
#: Celery's own commands, sent by its clock: its heartbeats and its control queues. Commands inside a transaction of
#: gpuqueue still count by themselves.
CELERYS = ("celery's worker", "celery's script", "script", "multi", "exec", "brpop")
#: Batches of the recorder: one for each job, because the next job waits for it, or up to one for each of its four
#: steps.
BATCHES = Bound(JOBS - 1, 4 * JOBS + 1)
#: What the recorder asks for in each turn: the epoch, to see whether the store is open, whether it is the history's
#: epoch, and to which epoch the events belong; and the recorded position of the history.
A_TURN = {"get": 3, "hget": 1, "settle": 1}
#: Settings that make periodic work rare during the test: at most one heartbeat and one tick, and no claim attempt
#: without a message.
SELDOM = {"GPUQUEUE_HEARTBEAT": f"{LONGEST_HEARTBEAT_S:g}s", "GPUQUEUE_HOST_LOST_AFTER": "10h", "GPUQUEUE_POLL": "1h"}
#: What a heartbeat and a tick ask for. Usually there is one of them, or none. One more question for each job would be
#: forty.
A_HEARTBEAT = {"heartbeat": 1, "promote": 1, "reap": 1, "reserve": 1, "get": 2, "hget": 1, "multi": 1, "exec": 1}
#: A heartbeat also asks whether the history has each ended run: once, or twice if the history did not have it yet.
ENDED = JOBS + FIRST
DIGESTS = {hashlib.sha1(whole(act).encode(), usedforsecurity=False).hexdigest(): act for act in ACTS}
#: How long an idle worker is observed, in seconds, and its claim attempts meanwhile. The clock causes none, but
#: messages of the last job may still arrive, which are four at most as above. All else that it asks for are heartbeats.
IDLE_S, IDLE_CLAIMS = 3.0, Bound(0, 4)
#: How often all threads of a worker wake up in a second. Each time, a thread takes a CPU from the jobs for a moment.
#: The wake-up channel's thread wakes up twice to check whether it should stop, and the worker once to check its parent;
#: Celery adds three for its own loop. Measured: 3 and 6; a busy machine makes it fewer. The range is wide, because
#: Celery's part is not ours, and narrow enough to catch a wait that became a hundred times shorter, or a loop that
#: polls instead.
WAKES = Bound(0, 40)


@dataclass(kw_only=True)
class Heard:
    """How often each name was asked for: scripts by their acts, commands by their names."""

    worker: Counter[str]
    others: Counter[str]


def named(command: str) -> str:
    """Return the act of a script, the kind of a Celery event, or else the command."""
    words = command.split(maxsplit=2)
    if words[0].lower() == "evalsha":
        return DIGESTS.get(words[1], "celery's script")
    if words[0].lower() == "fcall":
        return words[1].split("_")[1]
    reported = re.search(r"/\d+\.celeryev/(\w+)\.", words[1]) if words[0].lower() == "publish" else None
    return f"celery's {reported[1]}" if reported is not None else words[0].lower()


def through(site: Site, jobs: int) -> None:
    """Run *jobs* jobs, one after the other."""
    for _ in range(jobs):
        site.until_recorded(site.queue.requests.submit(make_spec(argv=("true",), mem_bytes=MIB)).id)


def listen(store: OwnStore, site: Site, act: Callable[[], object]) -> Heard:
    """Return the store's commands during *act*.

    The worker is known by its connection: it alone uses the socket.
    """
    admin = connect(store.url)
    reserve = next(digest for digest, act in DIGESTS.items() if act == "reserve")
    until(lambda: all(admin.script_exists(reserve)), what="the last act of the first tick")
    through(site, FIRST)  # by then the store has all scripts that a job needs
    heard = Heard(worker=Counter(), others=Counter())
    with admin.monitor() as listening:
        act()
        admin.echo(END)
        for output in listening.listen():
            if END in output["command"]:
                break
            name = named(output["command"])
            if output["client_type"] != "lua" and name not in NO_PART_OF_IT:
                (heard.worker if output["client_type"] == "unix" else heard.others)[name] += 1
    admin.close()
    return heard


def asks_for_heartbeats_alone(worker: Counter[str]) -> int:
    """Fail if there is more than heartbeats and ticks; return how many there may have been."""
    heartbeats = worker["heartbeat"] + 1  # one may have begun before, or end after the monitor
    assert worker.pop("hmget", 0) <= ENDED + heartbeats
    assert set(worker) <= set(A_HEARTBEAT)
    for name, asked in worker.items():
        assert asked <= A_HEARTBEAT[name] * heartbeats, f"{name}: {asked} in {heartbeats} heartbeats"
    return heartbeats


@pytest.mark.full
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "celery"])
def test_a_real_worker_asks_for_no_more_than_agreed(own_store: OwnStore, tmp_path: Path, *, plain: bool) -> None:
    """A real worker asks the store for no more than agreed.

    Ten more questions before each claim, or three before each start, once went unnoticed.
    """
    site = Site(tmp_path / "state", own_store.listen(), **SELDOM)
    try:
        site.start_recorder()
        site.environ["GPUQUEUE_REDIS_URL"] = own_store.url
        site.start_worker(plain=plain)
        heard = listen(own_store, site, lambda: through(site, JOBS))
    finally:
        site.stop()

    worker, others = heard.worker, heard.others
    CLAIMS.hold(worker.pop("claim"), f"looks for work of {JOBS} jobs")
    if not plain:
        assert 0 == worker.pop("celery's task", 0), "no tool has asked for events about tasks"
        for name in CELERYS:
            worker.pop(name, None)
    assert [JOBS, JOBS] == [worker.pop("started"), worker.pop("finish")]
    heartbeats = asks_for_heartbeats_alone(worker)

    assert JOBS == others.pop("submit")
    BATCHES.hold(others["settle"], f"batches of {JOBS} jobs")
    turns = others.pop("xread") + 1  # one may have begun before the monitor
    for sender in ("time", "hset"):  # the sender of notifications registers itself by the clock
        others.pop(sender, None)
    for name in ("promote", "reap", "reserve"):  # the recorder ticks as well
        assert others.pop(name, 0) <= heartbeats + 1
    turns += heartbeats  # a tick asks for the epoch once
    assert set(others) == set(A_TURN)
    for name, usual in A_TURN.items():
        assert others[name] <= usual * turns, f"{name}: {others[name]} in {turns} turns of the recorder"


def wakes(pid: int) -> dict[str, int]:
    """Return the number of sleeps, and so of wake-ups, of each thread of a process."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            lines = (task / "status").read_text().splitlines()
            found[task.name] = next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
    return found


@pytest.mark.full
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "celery"])
def test_an_idle_worker_sleeps(own_store: OwnStore, tmp_path: Path, *, plain: bool) -> None:
    """An idle worker wakes up rarely.

    It runs for weeks beside the jobs, and what it does each second it does six hundred thousand times a week.
    """
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

    IDLE_CLAIMS.hold(heard.worker.pop("claim", 0), f"looks for work in {IDLE_S:g} idle seconds")
    WAKES.hold(a_second[0], "times that an idle worker wakes up in a second")
    for name in (*CELERYS, "celery's task"):
        if not plain:
            heard.worker.pop(name, None)
    asks_for_heartbeats_alone(heard.worker)
