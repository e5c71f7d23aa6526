"""What a shim, forked by the fork server, adds to a job's start, compared with a spawn.

python -m benchmarks.bench_shim [--rounds 25]

Without store and worker: from a run directory that is ready to the job's first line, and to its end as a worker sees
it. The two ways alternate, because the machine is noisy. The figures are medians, compared with those of the plain
spawn.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from benchmarks.measure.figure import Measured
from benchmarks.measure.moments import beside
from benchmarks.measure.options import how_many
from benchmarks.measure.rounds import alternate
from benchmarks.measure.table import report
from gpuqueue.model.run import RunDevice
from workers.run.directory import Held, RunDir, ShimSpec
from workers.shim.client import Shims

ROUNDS, QUICK_ROUNDS = 25, 5
#: The moments of each start, in the order in which a way returns them.
MOMENTS = ("first", "end")


class Ways:
    """The ways to start the same job; each returns the seconds to its first line and to its observed end."""

    def __init__(self, place: Path) -> None:
        self._runs = place
        self._stamp = place / "stamp"
        code = f"import time; open({str(self._stamp)!r}, 'w').write(repr(time.monotonic()))"
        self._command = (sys.executable, "-I", "-S", "-c", code)
        self._numbers = count(1)
        self.shims = Shims()
        self.shims.prepare()

    def plain(self) -> tuple[float, float]:
        """Spawn the job."""
        began_s = time.monotonic()
        subprocess.run(self._command, check=True)
        return self._since(began_s)

    def forked(self) -> tuple[float, float]:
        """Let the fork server fork a shim for the job."""
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
        directory.renew(time.monotonic() + 60)
        directory.close()
        lock = directory.try_lock()
        if lock is None:
            raise SystemExit("the new run directory is locked")
        return directory.path, lock

    def _since(self, began_s: float) -> tuple[float, float]:
        ended_s = time.monotonic()
        return float(self._stamp.read_text()) - began_s, ended_s - began_s


def figures(*, quick: bool = False, rounds: int | None = None) -> Measured:
    """Yield the first line and the observed end of a job with a shim, compared with a plain spawn."""
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    with tempfile.TemporaryDirectory(prefix="gq-bench-") as place:
        ways = Ways(Path(place))
        acts = {"plain": ways.plain, "forked": ways.forked}
        try:
            found = alternate(rounds, acts)
        finally:
            ways.shims.close()
    yield from beside("plain", found, MOMENTS, called="a plain spawn", group="shim")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=how_many, default=ROUNDS)
    report(figures(rounds=parser.parse_args().rounds))


if __name__ == "__main__":
    main()
