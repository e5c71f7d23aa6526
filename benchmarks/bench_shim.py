"""What a shim adds to the start of a job: forked by the fork server, or as an interpreter of its own, beside a spawn.

python benchmarks/bench_shim.py [--rounds 25] [--json]

No store and no worker: from a run directory that is ready to the job's first line, and to its end as a worker sees it.
The three ways are measured in turn, since the machine is noisy; medians are printed, and ratios to the plain spawn.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from gpuqueue.run import RunDevice
from workers import shim
from workers.rundir import Held, RunDir, ShimSpec
from workers.shims import Shims


class Ways:
    """The ways to start one and the same job; each returns the seconds to its first line and to its seen end."""

    def __init__(self, place: Path) -> None:
        self._runs = place
        self._stamp = place / "stamp"
        code = f"import time; open({str(self._stamp)!r}, 'w').write(repr(time.monotonic()))"
        self._command = (sys.executable, "-I", "-S", "-c", code)
        self._numbers = count(1)
        self.shims = Shims()
        self.shims.prepare()

    def plain(self) -> tuple[float, float]:
        """Spawn it."""
        began_s = time.monotonic()
        subprocess.run(self._command, check=True)
        return self._since(began_s)

    def forked(self) -> tuple[float, float]:
        """Let the fork server fork a shim."""
        path, lock = self._run()
        began_s = time.monotonic()
        started = self.shims.start(path, lock)
        os.close(lock)
        poll = select.poll()
        poll.register(started.handle, select.POLLIN)
        poll.poll()
        figures = self._since(began_s)
        os.close(started.handle)
        started.close()
        return figures

    def interpreter(self) -> tuple[float, float]:
        """Start an interpreter for the shim, as workers did before there was a fork server."""
        path, lock = self._run()
        spec = json.loads((path / "spec").read_text())
        (path / "spec").write_text(json.dumps({**spec, "lock_fd": lock}))
        began_s = time.monotonic()
        command = [sys.executable, "-I", "-S", "-X", "utf8", shim.__file__, str(path)]
        subprocess.run(command, pass_fds=(lock,), start_new_session=True, check=True)
        os.close(lock)
        return self._since(began_s)

    def _run(self) -> tuple[Path, int]:
        devices = (RunDevice(uuid="GPU-0", lease_bytes=1),)
        directory = RunDir.create(self._runs, Held(job_id=next(self._numbers), token="1.bench", devices=devices))  # noqa: S106 - a fencing token
        directory.write_spec(
            ShimSpec(
                argv=self._command,
                cwd="/",
                env=dict(os.environ),
                time_limit_s=None,
                kill_grace_s=1.0,
                start_before=time.monotonic() + 60,
                umask=0o022,
            )
        )
        directory.vouch(time.monotonic() + 60)
        directory.close()
        lock = directory.try_lock()
        if lock is None:
            raise SystemExit("the new run directory is locked")
        return directory.path, lock

    def _since(self, began_s: float) -> tuple[float, float]:
        ended_s = time.monotonic()
        return float(self._stamp.read_text()) - began_s, ended_s - began_s


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuqueue-bench-") as place:
        ways = Ways(Path(place))
        acts: list[Callable[[], tuple[float, float]]] = [ways.plain, ways.forked, ways.interpreter]
        measured: dict[str, list[tuple[float, float]]] = {act.__name__: [] for act in acts}
        for _ in range(options.rounds):
            for act in acts:
                measured[act.__name__].append(act())
        ways.shims.close()
    medians = {
        name: [statistics.median(column) * 1e3 for column in zip(*each, strict=True)] for name, each in measured.items()
    }
    if options.json:
        print(json.dumps({"ms": medians, "load": os.getloadavg()}, indent=2))
        return
    print(f"{'':14} {'first line':>12} {'ratio':>6} {'end seen':>12} {'ratio':>6}")
    for name, (first, end) in medians.items():
        line, over = first / medians["plain"][0], end / medians["plain"][1]
        print(f"{name:14} {first:10.1f}ms {line:6.1f} {end:10.1f}ms {over:6.1f}")
    print("load average: " + ", ".join(f"{each:.1f}" for each in os.getloadavg()))


if __name__ == "__main__":
    main()
