"""The memory and CPU share of a machine's workers, idle and busy.

python -m benchmarks.bench_workers [--seconds 20]

The worker runs in Celery, and counts with its parent, its fork server and, while idle, the shim that waits; *others*
are the recorder, the host process and the store together. *up* is all that is up with one device or eight, but for
the store. *busy* is with a running job in each of 4 slots, where jobs and their shims do not count. *stream* is with
trivial jobs submitted one after the other. Memory is PSS: a page that several processes share counts once over all of
them. Where PSS cannot be read, it is RSS, which counts the page for each; the floor's name says which. The floor of
the memory is a Python that has imported celery, that of the CPU time one that wakes up ten times a second.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import psutil

from benchmarks.measure.figure import Figure, Floor, Measured
from benchmarks.measure.options import duration_s
from benchmarks.measure.place import Machine, private_machine
from benchmarks.measure.rounds import until
from benchmarks.measure.spent import PSS, RSS, belongs, can_share, memory_mib, share_of_core, with_children, workers
from benchmarks.measure.table import report
from gpuqueue.model.job import JobState

SECONDS, QUICK_SECONDS = 20.0, 4.0
SLOTS = 4
#: Numbers of devices of a machine that is up and idle.
UP = (1, 8)
IMPORTED_CELERY = "Python with celery imported"
IMPORTED = "import celery, celery.bin.worker, kombu.transport.redis, sys; print(flush=True); sys.stdin.read()"
TICKS = "import time\nprint(flush=True)\nwhile True: time.sleep(0.1)"


def figures(*, quick: bool = False, seconds: float | None = None) -> Measured:
    """Yield memory and CPU time."""
    seconds = seconds or (QUICK_SECONDS if quick else SECONDS)
    with private_machine(SLOTS=str(SLOTS)) as machine, _python(IMPORTED) as imported, _python(TICKS) as ticking:
        (main_process,) = workers(str(machine.place))
        # The first run loads what every later one needs, so an idle worker has had one run.
        machine.client.jobs.wait(machine.client.jobs.submit(["true"], mem="1M").id)
        floor = share_of_core([ticking], seconds)
        ticks = Floor(name="Python that wakes 10 times a second", value=floor) if floor else None
        idle = with_children(main_process.parent() or main_process)  # that run's shim has ended
        worker = [main_process, *main_process.children()]
        others = [each for each in _ours(machine) if each not in idle]
        memory = _memory([imported], idle, others)
        yield memory("worker.idle.memory", idle)
        yield _share("worker.idle.cpu", worker, seconds, ticks)
        yield _share("others.idle.cpu", others, seconds, ticks)
        yield replace(memory("others.idle.memory", others), floor=None)
        jobs = [machine.client.jobs.submit(["sleep", "3600"], mem="1M").id for _ in range(SLOTS)]
        until(lambda: all(machine.client.jobs.get(each).state is JobState.RUNNING for each in jobs), "four runs")
        yield memory("worker.busy.memory", worker)
        yield _share("worker.busy.cpu", worker, seconds, ticks)
        for each in jobs:
            machine.client.jobs.cancel(each)
            machine.client.jobs.wait(each)
        with _stream(machine):
            yield _share("worker.stream.cpu", worker, seconds, None)
        yield memory("worker.stream.memory", worker)
    for count in UP:
        yield from _up(count, seconds)


def _up(count: int, seconds: float) -> Iterator[Figure]:
    """Yield the memory and the share of a core of a machine with *count* idle devices, each of which has had a run."""
    with private_machine(f"sim:{count}x8G") as machine:
        for number in range(count):
            device = f"sim-{machine.settings.host}-{number}"
            machine.client.jobs.wait(machine.client.jobs.submit(["true"], mem="1M", device=device).id)
        store = int((machine.place / "store" / "pid").read_text().split()[0])
        processes = [each for each in _ours(machine) if each.pid != store]
        yield replace(_memory(processes)(f"up.{count}.memory", processes), floor=None)
        yield _share(f"up.{count}.cpu", processes, seconds, None)


def _memory(
    floor: Sequence[psutil.Process], *watched: Sequence[psutil.Process]
) -> Callable[[str, Sequence[psutil.Process]], Figure]:
    """Return a function that measures memory in the same way for everything that is compared with *floor*."""
    shared = can_share([*floor, *(each for some in watched for each in some)])
    least = Floor(name=f"{IMPORTED_CELERY}, {PSS if shared else RSS}", value=memory_mib(floor, shared=shared))

    def measured(name: str, processes: Sequence[psutil.Process]) -> Figure:
        return Figure(name=name, value=memory_mib(processes, shared=shared), unit="MiB", floor=least)

    return measured


def _share(name: str, processes: Sequence[psutil.Process], seconds: float, floor: Floor | None) -> Figure:
    return Figure(name=name, value=share_of_core(processes, seconds), unit="%", floor=floor)


def _ours(machine: Machine) -> list[psutil.Process]:
    """Return every process of a machine, including the store, which has its starter's environment."""
    return [each for each in psutil.process_iter() if belongs(each, str(machine.place))]


@contextmanager
def _python(code: str) -> Iterator[psutil.Process]:
    """Run Python until it prints a line, and keep it running."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is not None:
            process.stdout.readline()
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


@contextmanager
def _stream(machine: Machine) -> Iterator[None]:
    """Submit trivial jobs one after the other during the block."""
    stopping = threading.Event()

    def submit() -> None:
        while not stopping.is_set():
            machine.client.jobs.wait(machine.client.jobs.submit(["true"], mem="1M").id)

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def main() -> None:
    """Measure all and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=duration_s, default=SECONDS, help="how long each is watched")
    report(figures(seconds=parser.parse_args().seconds))


if __name__ == "__main__":
    main()
