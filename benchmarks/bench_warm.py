"""How soon a script has torch: by hand, through the queue, and through the queue into a warm interpreter.

python -m benchmarks.bench_warm [--rounds 7]

A private machine: embedded store, one simulated device, a real Celery worker. The times run from the call of
``submit``, or of the interpreter, to the script's first line, to the line after ``import torch`` and to its end as seen
from outside. The three ways alternate, because the machine is noisy. The figures are medians, compared with those of
``python train.py``. After each warm job the benchmark waits for the next warm interpreter, so that none starts during a
measurement. The time from the use of one interpreter until the next is ready is a figure too.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.measure.figure import Absent, Figure, Measured
from benchmarks.measure.moments import beside
from benchmarks.measure.options import how_many
from benchmarks.measure.place import private_machine
from benchmarks.measure.rounds import alternate
from benchmarks.measure.table import report
from gpuqueue.client import Client
from gpuqueue.errors import install_extra

ROUNDS, QUICK_ROUNDS = 7, 2
#: The moments of each start, in the order in which a way returns them.
MOMENTS = ("first", "torch", "end")
SCRIPT = """
import time
first = time.time()
import torch
usable = time.time()
torch.ones(2).sum()
open("stamp", "w").write(f"{first!r} {usable!r}")
"""
#: Longest wait for a warm interpreter, in seconds.
READY_S = 120.0
#: How often a warm interpreter is polled for readiness, how long it must then sleep, and the least CPU time that it
#: must have used: with less it has only mapped torch's libraries. In seconds.
POLL_S, STILL_S, LEAST_IMPORT_S = 0.02, 0.3, 0.5


class Ways:
    """The ways to start the script; each returns the seconds to its first line, to torch and to its observed end."""

    def __init__(self, client: Client, place: Path) -> None:
        self._client = client
        self._place = place
        self._script = place / "train.py"
        self._script.write_text(SCRIPT)
        #: The seconds from the use of a warm interpreter until the next one was ready, and the memory of that one.
        self.refills_s: list[float] = []
        self.interpreter_mib: list[float] = []

    def by_hand(self) -> list[float]:
        """Start the script directly."""
        began = time.time()
        subprocess.run([sys.executable, "train.py"], cwd=self._place, check=True)
        return self._since(began)

    def cold(self) -> list[float]:
        """Submit the script."""
        return self._submitted(warm=False)

    def warm(self) -> list[float]:
        """Submit the script to a ready warm interpreter, and wait for the next one.

        The wait keeps the start of an interpreter out of the measured times.
        """
        measured = self._submitted(warm=True)
        taken_over = self._stamps()[0]
        self.refills_s.append(self._until_ready() - taken_over)
        return measured

    def _submitted(self, *, warm: bool) -> list[float]:
        began = time.time()
        job = self._client.jobs.submit("train.py", mem="2G", cwd=self._place, python=sys.executable, warm=warm)
        self._client.jobs.wait(job.id)
        measured = self._since(began)
        notes = [note.text for note in self._client.jobs.show(job.id).notes]
        if warm and "started warm" not in notes:
            raise SystemExit(f"job {job.id} was not started warm: {notes}")
        return measured

    def prepare(self) -> None:
        """Submit a first job that causes a warm interpreter, and wait for it."""
        self._client.jobs.wait(
            self._client.jobs.submit("train.py", mem="2G", cwd=self._place, python=sys.executable, warm=True).id
        )
        self._until_ready()
        self.interpreter_mib.clear()

    def _until_ready(self) -> float:
        """Wait until the warm interpreter has imported torch and sleeps. Return when it was first seen so."""
        deadline = time.time() + READY_S
        while time.time() < deadline:
            for process in _interpreters(self._place):
                seen, before_s = time.time(), _import_s(process)
                if before_s is None:
                    continue
                time.sleep(STILL_S)
                if _import_s(process) == before_s:  # it slept all the time, and did not wait for the disk
                    self.interpreter_mib.append(process.memory_info().rss / 2**20)
                    return seen
            time.sleep(POLL_S)
        raise SystemExit("no warm interpreter became ready")

    def _since(self, began: float) -> list[float]:
        ended = time.time()
        first, usable = self._stamps()
        return [first - began, usable - began, ended - began]

    def _stamps(self) -> tuple[float, float]:
        """Return when the script's first line ran, and when it had torch; in a warm interpreter both are the same."""
        first, usable = map(float, (self._place / "stamp").read_text().split())
        return first, usable


def _import_s(process: psutil.Process) -> float | None:
    """Return the CPU time of a warm interpreter that sleeps and has torch; None if it still imports, or is gone."""
    try:
        spent_s = float(process.cpu_times().user)
        asleep = process.status() == psutil.STATUS_SLEEPING
        has_torch = asleep and "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
    except (OSError, psutil.Error):
        return None
    return spent_s if has_torch and spent_s > LEAST_IMPORT_S else None


def _interpreters(place: Path) -> list[psutil.Process]:
    """Return the warm interpreters of the machine whose state is in *place*, which their shims' environments name."""
    found = []
    for process in psutil.process_iter():
        try:
            is_warm = any(word.endswith("inside/warm_start.py") for word in process.cmdline())
            shim = process.parent() if is_warm else None
            if shim is not None and shim.environ().get("GPUQUEUE_STATE_DIR") == str(place):
                found.append(process)
        except psutil.Error:
            continue
    return found


def figures(*, quick: bool = False, rounds: int | None = None) -> Measured:
    """Yield how soon torch is there through the queue, cold and warm, compared with ``python train.py``."""
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    if importlib.util.find_spec("torch") is None:
        yield Absent(name="warm", why=f"no torch here: {install_extra('examples')}")
        return
    with private_machine() as machine:
        ways = Ways(machine.client, machine.place)
        ways.prepare()
        acts = {"by hand": ways.by_hand, "cold": ways.cold, "warm": ways.warm}
        found = alternate(rounds, acts)
    yield from beside("by hand", found, MOMENTS, called="python train.py", group="warm")
    yield Figure(
        name="warm.interpreter.memory", value=statistics.median(ways.interpreter_mib), unit="MiB", rounds=rounds
    )
    yield Figure(name="warm.interpreter.ready", value=statistics.median(ways.refills_s) * 1e3, unit="ms", rounds=rounds)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=how_many, default=ROUNDS)
    report(figures(rounds=parser.parse_args().rounds))


if __name__ == "__main__":
    main()
