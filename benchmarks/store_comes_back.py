"""Measures the seconds until a queue accepts jobs again after its store died, beside a bare start of the same store.

    python -m benchmarks.store_comes_back [--jobs 5000] [--rounds 5]

One person's `up` runs, and *jobs* wait in the store. Two things happen to it: ``killed``, a SIGKILL of the store, and
``full``, a full disk, on which the store has ended and its reserve is used up; the time counts from when there is room
again. The floor is the start of a store on a copy of the same data, until it answers. All of it is on a disk of 512 MiB
in memory, if one can be mounted; otherwise ``full`` is left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.measure.figure import Absent, Figure, Floor, Measured
from benchmarks.measure.options import how_many
from benchmarks.measure.place import Machine, from_the_tests, private_machine
from benchmarks.measure.table import report
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.errors import GpuQueueError
from gpuqueue.queue.absence import StoreState, StoreTrouble
from gpuqueue.settings.settings import Settings

from_the_tests()

import pytest  # noqa: E402 - the helpers of the tests raise its Skipped
from bounded import until  # noqa: E402 - of the tests
from factories import make_spec  # noqa: E402
from short_host import fill, own_disk  # noqa: E402

JOBS, ROUNDS = 5000, 5
DISK = "size=512m"
#: The bare start is measured next to each round.
FLOOR = "a bare start"
POLL_S = 0.005


def figures(*, jobs: int = JOBS, rounds: int = ROUNDS) -> Measured:
    """Yield the seconds until a job is accepted again."""
    with _disk() as disk, _filled(jobs) as machine:
        yield _figure("comes_back.killed", lambda: _killed(machine), machine, rounds, jobs)
        if disk is None:
            yield Absent(name="comes_back.full", why="no disk of its own can be mounted here")
        else:
            yield _figure("comes_back.full", lambda: _full(machine, disk), machine, rounds, jobs)


def _figure(name: str, act: Callable[[], float], machine: Machine, rounds: int, jobs: int) -> Figure:
    """Measure *act* and a bare start in turn."""
    found, bare = [], []
    for _ in range(rounds):
        bare.append(_bare(machine))
        found.append(act())
    floor = Floor(name=FLOOR, value=statistics.median(bare))
    return Figure(name=name, value=statistics.median(found), unit="s", floor=floor, rounds=rounds, of=jobs)


@contextmanager
def _disk() -> Iterator[Path | None]:
    """Yield a small disk of its own, in which all temporary directories are; None where none can be mounted."""
    place, before = Path(tempfile.mkdtemp(prefix="disk-")), tempfile.tempdir
    disk = own_disk(place, options=DISK)
    try:
        mounted = disk.__enter__()
    except pytest.skip.Exception:
        yield None
        return
    tempfile.tempdir = str(mounted)
    try:
        yield mounted
    finally:
        tempfile.tempdir = before
        disk.__exit__(None, None, None)
        place.rmdir()


@contextmanager
def _filled(jobs: int) -> Iterator[Machine]:
    """Yield a machine that is up, with jobs that wait."""
    with private_machine() as machine:
        machine.run("drain", "0")
        for _ in range(jobs):
            machine.client.queue.requests.submit(make_spec())
        yield machine


def _is_usable(machine: Machine) -> bool:
    """Return whether a job is accepted."""
    with suppress(GpuQueueError):
        machine.client.queue.requests.submit(make_spec())
        return True
    return False


def _until_usable(machine: Machine) -> float:
    """Return how long it takes until a job is accepted, in seconds."""
    began_s = time.monotonic()
    while not _is_usable(machine):
        time.sleep(POLL_S)
    return time.monotonic() - began_s


def _killed(machine: Machine) -> float:
    server = EmbeddedStore(machine.settings).server()
    if server is None or not server.send(signal.SIGKILL) or not server.wait(10):
        raise RuntimeError("there is no store to kill")
    return _until_usable(machine)


def _full(machine: Machine, disk: Path) -> float:
    """Fill the disk until the store waits for room, and return how long it needs when there is room."""
    reserve = machine.settings.state_dir / "store" / "reserve"
    until(reserve.exists, what="the reserve")
    fillers: list[Path] = []

    def waits() -> bool:
        with suppress(OSError):
            fillers.append(fill(disk).rename(disk / f"filler-{len(fillers)}"))
        _is_usable(machine)
        trouble = StoreTrouble.read(machine.settings)
        return trouble is not None and trouble.state is StoreState.NO_ROOM

    until(waits, what="the store waits for room")
    for filler in fillers:
        filler.unlink()
    return _until_usable(machine)


def _bare(machine: Machine) -> float:
    """Return how long a store takes to start on a copy of the data, in seconds."""
    with tempfile.TemporaryDirectory(prefix="bare-") as place:
        shutil.copytree(machine.settings.state_dir / "store" / "appendonlydir", Path(place) / "store" / "appendonlydir")
        shutil.copy(machine.settings.state_dir / "store" / "server.json", Path(place) / "store")
        store = EmbeddedStore(Settings.load({"GPUQUEUE_STATE_DIR": place, "GPUQUEUE_CONFIG": os.devnull}))
        began_s = time.monotonic()
        store.start()
        took_s = time.monotonic() - began_s
        store.stop()
        return took_s


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=how_many, default=JOBS)
    parser.add_argument("--rounds", type=how_many, default=ROUNDS)
    options = parser.parse_args()
    report(figures(jobs=options.jobs, rounds=options.rounds))


if __name__ == "__main__":
    main()
