"""Runs the same trivial job through each peer: jobs a second, latency, cost of a submit, effect of a kill."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil

from benchmarks.measure.command import beside_click
from benchmarks.measure.ended import patient
from benchmarks.measure.figure import Absent, Figure, Floor, Measured
from benchmarks.measure.place import ROOT
from benchmarks.measure.rounds import medians, timed, until
from benchmarks.peers.crew import PATIENCE_S, alive
from benchmarks.peers.known import PEERS
from benchmarks.peers.peer import SLOTS, NotInstalled, Peer, Submitter

JOBS, QUICK_JOBS = 400, 60
ROUNDS, QUICK_ROUNDS = 50, 8
#: How long after a kill or a cancel the remaining copies are counted, in seconds.
SETTLED_S = 10.0
#: Some peers are a thousand times slower than others: a part ends after about this time, in seconds, with what it has
#: by then.
ENOUGH_S, QUICK_ENOUGH_S = 60.0, 15.0
#: How many jobs are used to estimate the number of jobs for that time.
PILOT_JOBS = 10
#: The number of rounds of many jobs, in alternation with as many that are spawned directly.
JOB_ROUNDS = 3


def figures(*, quick: bool = False, names: Sequence[str] = ()) -> Measured:
    """Yield the figures of each installed peer, and a line for each that is not installed."""
    for name in names or PEERS:
        try:
            with PEERS[name]() as peer, tempfile.TemporaryDirectory(prefix="gq-peer-") as place:
                yield from _of(peer, Path(place), quick=quick)
        except NotInstalled as error:
            yield Absent(name=f"peers.{name}", why=str(error))
        except (OSError, RuntimeError, TimeoutError, subprocess.SubprocessError, psutil.Error) as error:
            yield Absent(name=f"peers.{name}", why=f"it broke off: {error}")


def _of(peer: Peer, place: Path, *, quick: bool) -> Measured:
    rounds, jobs, enough_s = (QUICK_ROUNDS, QUICK_JOBS, QUICK_ENOUGH_S) if quick else (ROUNDS, JOBS, ENOUGH_S)
    with peer.submitter() as submitter:
        submitter.submit(_job(place, "warm"))
        until(partial(_count, place, "warm"), f"a first job of {peer.name}")
        yield _start(peer, submitter, place, rounds, enough_s)
        yield from _throughput(peer, submitter, place, jobs, enough_s)
        yield _submit(peer, rounds)
        yield from _kill(peer, submitter, place)


def _job(place: Path, name: str) -> list[str]:
    """Return the trivial job, which appends the time of its start to a file."""
    return ["/bin/sh", "-c", f"date +%s.%N >> {place / name}"]


def _count(place: Path, name: str) -> int:
    path = place / name
    return path.read_text().count("\n") if path.exists() else 0


def _start(peer: Peer, submitter: Submitter, place: Path, rounds: int, enough_s: float) -> Figure:
    ours: list[float] = []
    floors: list[float] = []
    deadline = time.monotonic() + enough_s
    for turn in range(rounds):
        if turn >= QUICK_ROUNDS and time.monotonic() > deadline:
            break
        for found, name, act in (
            (ours, f"ours{turn}", submitter.submit),
            (floors, f"floor{turn}", lambda words: subprocess.run(words, check=True)),
        ):
            began = time.time()
            act(_job(place, name))
            until(partial(_count, place, name), f"a job of {peer.name}")
            found.append(float((place / name).read_text()) - began)
    floor = Floor(name="spawned directly", value=statistics.median(floors) * 1e3)
    value = statistics.median(ours) * 1e3
    return Figure(name=f"peers.{peer.name}.start", value=value, unit="ms", floor=floor, rounds=len(ours))


def _throughput(peer: Peer, submitter: Submitter, place: Path, most: int, enough_s: float) -> Measured:
    rounds_s: dict[str, list[float]] = {"ours": [], "floor": []}

    def through(name: str, count: int) -> None:
        _submit_many(submitter, place, name, count)
        until(lambda: _count(place, name) >= count, f"{count} jobs of {peer.name}", timeout_s=300, every_s=0.005)

    def directly() -> None:
        for _ in range(jobs):
            subprocess.run(_job(place, "direct"), check=True)

    one_takes_s = timed(partial(through, "pilot", PILOT_JOBS)) / PILOT_JOBS
    jobs = within(enough_s / JOB_ROUNDS, most // JOB_ROUNDS, one_takes_s)
    for turn in range(JOB_ROUNDS):
        rounds_s["ours"].append(timed(partial(through, f"many{turn}", jobs)))
        rounds_s["floor"].append(timed(directly))
    rate = {name: jobs / took_s for name, took_s in medians(rounds_s).items()}
    floor = Floor(name="spawned directly, in a row", value=rate["floor"])
    yield Figure(
        name=f"peers.{peer.name}.jobs", value=rate["ours"], unit="jobs/s", floor=floor, rounds=JOB_ROUNDS, of=jobs
    )
    yield _submits(peer, submitter, place, jobs)


def _submits(peer: Peer, submitter: Submitter, place: Path, jobs: int) -> Figure:
    """Measure the submits a second while all slots are taken, so that no submitted job runs meanwhile."""
    go = place / "go"
    for _ in range(SLOTS):
        submitter.submit(["/bin/sh", "-c", f"echo >> {place / 'taken'}; until [ -e {go} ]; do sleep 0.2; done"])
    with contextlib.suppress(TimeoutError):  # some peers start jobs one after the other
        until(lambda: _count(place, "taken") >= SLOTS, f"{SLOTS} jobs of {peer.name}", timeout_s=SETTLED_S)
    try:
        took_s = timed(partial(_submit_many, submitter, place, "behind", jobs))
    finally:
        go.touch()
    until(lambda: _count(place, "behind") >= jobs, f"those behind, of {peer.name}", timeout_s=300)
    rate = jobs / took_s
    return Figure(name=f"peers.{peer.name}.submits", value=rate, unit="submits/s", of=jobs)


def _submit_many(submitter: Submitter, place: Path, name: str, count: int) -> None:
    for _ in range(count):
        submitter.submit(_job(place, name))


def within(seconds: float, most: int, one_takes_s: float) -> int:
    """Return how many of *most* fit into *seconds*, but at least a few."""
    return max(PILOT_JOBS, min(most, int(seconds / one_takes_s)))


def _submit(peer: Peer, rounds: int) -> Figure | Absent:
    if not peer.command:
        return Absent(name=f"peers.{peer.name}.submit", why="it has no command that submits")
    run = partial(_quiet, peer=peer)
    return beside_click(f"peers.{peer.name}.submit", peer.command, run, rounds=max(3, rounds // 3))


def _quiet(words: Sequence[str], peer: Peer) -> None:
    with tempfile.TemporaryFile() as output:  # no pipe: a background process of a submit would hold it open
        nobody = subprocess.DEVNULL
        environ = dict(peer.environ)
        with patient(
            words, patience_s=PATIENCE_S, env=environ, cwd=ROOT, stdin=nobody, stdout=nobody, stderr=output
        ) as process:
            code = process.wait()
        output.seek(0)
        if code:
            raise RuntimeError(f"{words[0]} ended with {code}: {output.readline().decode(errors='replace').strip()}")


def _kill(peer: Peer, submitter: Submitter, place: Path) -> Measured:
    """Kill the worker under a job, let it restart, then cancel the job; yield the number of copies each time."""
    pids = place / "pids"
    job_id = submitter.submit(["/bin/sh", "-c", f"echo $$ >> {pids}; exec sleep 600"])
    until(partial(_count, place, "pids"), f"a long job of {peer.name}")
    for each in peer.mains():
        each.kill()
    time.sleep(1.0)
    peer.restart()
    time.sleep(SETTLED_S)
    yield Figure(name=f"peers.{peer.name}.after-kill", value=float(len(_copies(pids))), unit="copies")
    submitter.cancel(job_id)
    _until_gone(pids)
    left = _copies(pids)
    yield Figure(name=f"peers.{peer.name}.after-cancel", value=float(len(left)), unit="copies")
    for each in left:
        os.kill(each.pid, 9)


def _until_gone(pids: Path) -> None:
    deadline = time.monotonic() + SETTLED_S
    while _copies(pids) and time.monotonic() < deadline:
        time.sleep(0.1)


def _copies(pids: Path) -> list[psutil.Process]:
    found = [int(each) for each in pids.read_text().split()]
    return alive([psutil.Process(each) for each in found if psutil.pid_exists(each)])
