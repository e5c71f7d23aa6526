"""Measures how long a line of a running job takes to ``gpuqueue logs -f``, beside ``tail -f`` of the same file.

    python -m benchmarks.log_latency [--lines 60]

On a host with the service the log is a file of that host. On another one, the relay of the host sends it while somebody
follows. Each line has the time at which the job wrote it; all processes are on this machine and share its clock and its
cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure.options import how_many
from benchmarks.measure.place import GPUQUEUE, from_the_tests

from_the_tests()

from bounded import until  # noqa: E402 - of the tests
from far_host import FarHost  # noqa: E402
from service_fixtures import serving  # noqa: E402

#: The job writes a line each 0.31 s, so that its lines keep no step with a poll of a round number of milliseconds.
PAUSE_S = 0.31
SCRIPT = """
import sys, time
for _ in range({lines}):
    print("at", time.monotonic(), flush=True)
    time.sleep({pause})
"""


def main(words: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=how_many, default=60)
    options = parser.parse_args(words)
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with TemporaryDirectory(prefix="gpuqueue-bench-") as made, _far(Path(made)) as far:
        job = _submit(far, options.lines)
        log = until(lambda: next(far.site.settings.runs_dir.glob(f"{job}/*/log"), None), what="the log")
        followers = {
            "tail -f on the host": ["tail", "-f", "-c", "+1", str(log)],
            "gpuqueue logs -f, through service and relay": [GPUQUEUE, "logs", "-f", job],
        }
        with ThreadPoolExecutor() as pool:
            found = {name: pool.submit(_delays, words, far.environ, options.lines) for name, words in followers.items()}
        for name, delays in found.items():
            _print(name, delays.result())
    print(f"load after: {os.getloadavg()[0]:.1f}")


@contextmanager
def _far(directory: Path) -> Iterator[FarHost]:
    """Yield a host that is joined to a service."""
    with serving(GPUQUEUE_SNAPSHOT="false") as site:
        host = FarHost(site, directory)
        try:
            yield host
        finally:
            host.close()


def _submit(far: FarHost, lines: int) -> str:
    """Submit the job that writes the lines, and return its id."""
    script = SCRIPT.format(lines=lines, pause=PAUSE_S)
    command = [GPUQUEUE, "submit", "--mem", "1M", "--", sys.executable, "-c", script]
    return subprocess.run(command, env=far.environ, check=True, capture_output=True, text=True).stdout.split()[0]


def _delays(words: Sequence[str], environ: dict[str, str], lines: int) -> list[float]:
    """Follow the log with the command *words*, and return how long each line took to its output, in seconds.

    The first second is left out: what was written before the follower came is no matter of its speed.
    """
    began = time.monotonic()
    follower = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    delays, seen = list[float](), 0
    for line in follower.stdout or ():
        now = time.monotonic()
        if line.startswith("at "):
            seen += 1
            at = float(line.split()[1])
            if at > began + 1:
                delays.append(now - at)
        if seen == lines:
            break
    follower.terminate()
    follower.wait(timeout=30)
    return delays


def _print(name: str, delays: list[float]) -> None:
    if not delays:
        raise SystemExit(f"{name}: no line came")
    delays.sort()
    print(
        f"{name}: {len(delays)} lines, p50 {1000 * delays[len(delays) // 2]:.0f} ms, "
        f"p99 {1000 * delays[int(len(delays) * 0.99)]:.0f} ms, last {1000 * delays[-1]:.0f} ms"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
