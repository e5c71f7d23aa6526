"""How soon a script has torch: by hand, through the queue as ever, and through the queue into a spare interpreter.

python benchmarks/bench_warm.py [--rounds 7] [--json]

Starts a private machine (embedded store, one simulated device, a real Celery worker) in a temporary directory. From the
call of `submit`, or of the interpreter, to the script's first line and to the line after `import torch`; the three ways
are measured in turn, since the machine is noisy, and medians are printed, with ratios to `python train.py`. Before each
warm job the spare has to be ready: how long that takes after the last one is told as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from gpuqueue import Client, Settings

BIN = Path(sys.executable).parent
SCRIPT = """
import time
first = time.time()
import torch
usable = time.time()
torch.ones(2).sum()
open("stamp", "w").write(f"{first!r} {usable!r}")
"""
#: Longest wait for a spare, in seconds.
SPARE_S = 120.0


class Ways:
    """The ways to start the script; each returns the seconds to its first line, to torch and to its seen end."""

    def __init__(self, client: Client, place: Path) -> None:
        self._client = client
        self._place = place
        self._script = place / "train.py"
        self._script.write_text(SCRIPT)
        #: How long it took until a spare was ready again, and what it held then.
        self.refills_s: list[float] = []
        self.spare_mib: list[float] = []

    def by_hand(self) -> list[float]:
        """Start it ourselves."""
        began = time.time()
        subprocess.run([sys.executable, "train.py"], cwd=self._place, check=True)
        return self._since(began)

    def cold(self) -> list[float]:
        """Submit it."""
        return self._submitted(warm=False)

    def warm(self) -> list[float]:
        """Submit it to a spare that is ready."""
        began = time.time()
        self._until_ready()
        self.refills_s.append(time.time() - began)
        return self._submitted(warm=True)

    def _submitted(self, *, warm: bool) -> list[float]:
        began = time.time()
        job = self._client.submit("train.py", mem="1M", cwd=self._place, python=sys.executable, warm=warm)
        self._client.wait(job.id)
        measured = self._since(began)
        notes = [note.text for note in self._client.show(job.id).notes]
        if warm and "started warm" not in notes:
            raise SystemExit(f"job {job.id} was not started warm: {notes}")
        return measured

    def prepare(self) -> None:
        """Let the worker know what spares are wanted."""
        self._client.wait(
            self._client.submit("train.py", mem="1M", cwd=self._place, python=sys.executable, warm=True).id
        )

    def _until_ready(self) -> None:
        """Wait until the spare has imported torch: then it sleeps."""
        deadline = time.time() + SPARE_S
        while time.time() < deadline:
            for process in _spares(self._place):
                if (
                    process.status() == psutil.STATUS_SLEEPING
                    and "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
                ):
                    time.sleep(0.3)  # still asleep after that: it does not wait for the disk
                    if process.status() == psutil.STATUS_SLEEPING and process.cpu_times().user > 0.5:  # noqa: PLR2004 - of two
                        self.spare_mib.append(process.memory_info().rss / 2**20)
                        return
            time.sleep(0.05)
        raise SystemExit("no spare became ready")

    def _since(self, began: float) -> list[float]:
        ended = time.time()
        first, usable = map(float, (self._place / "stamp").read_text().split())
        return [first - began, usable - began, ended - began]


def gpuqueue(*words: str, environ: dict[str, str]) -> None:
    """Run a command of ours to its end."""
    subprocess.run([BIN / "gpuqueue", *words], env=environ, stdout=subprocess.DEVNULL, check=True)


def _spares(place: Path) -> list[psutil.Process]:
    """Return the interpreters in waiting of the machine whose state lies in *place*: their shims know it."""
    found = []
    for process in psutil.process_iter():
        try:
            is_spare = any(word.endswith("inside/spare.py") for word in process.cmdline())
            shim = process.parent() if is_spare else None
            if shim is not None and shim.environ().get("GPUQUEUE_STATE_DIR") == str(place):
                found.append(process)
        except psutil.Error:
            continue
    return found


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuqueue-bench-") as directory:
        place = Path(directory)
        environ = {**os.environ, "GPUQUEUE_STATE_DIR": directory, "GPUQUEUE_CONFIG": os.devnull}
        os.environ["GPUQUEUE_STATE_DIR"] = directory
        gpuqueue("up", "--devices", "sim:1x8G", environ=environ)
        try:
            with Client(Settings.load(environ)) as client:
                ways = Ways(client, place)
                ways.prepare()
                acts: list[Callable[[], list[float]]] = [ways.by_hand, ways.cold, ways.warm]
                measured: dict[str, list[list[float]]] = {act.__name__: [] for act in acts}
                for _ in range(options.rounds):
                    for act in acts:
                        measured[act.__name__].append(act())
        finally:
            gpuqueue("down", "--cancel-jobs", environ=environ)
    medians = {name: [statistics.median(c) * 1e3 for c in zip(*each, strict=True)] for name, each in measured.items()}
    spare = {"mib": statistics.median(ways.spare_mib), "ready_again_s": statistics.median(ways.refills_s)}
    if options.json:
        print(json.dumps({"ms": medians, "spare": spare, "load": os.getloadavg()}, indent=2))
        return
    print(f"{'':8} {'first line':>12} {'ratio':>6} {'torch is there':>16} {'ratio':>6} {'end seen':>12} {'ratio':>6}")
    for name, figures in medians.items():
        cells = zip((12, 16, 12), figures, medians["by_hand"], strict=True)
        print(f"{name:8} " + " ".join(f"{ms:{width - 2}.0f}ms {ms / floor:6.2f}" for width, ms, floor in cells))
    print(
        f"a spare holds {spare['mib']:.0f} MiB; {spare['ready_again_s']:.1f} s after two other jobs it was ready again"
    )
    print("load average: " + ", ".join(f"{each:.1f}" for each in os.getloadavg()))


if __name__ == "__main__":
    main()
