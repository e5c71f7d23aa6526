"""What remains when workers are killed at random moments: 100 times SIGKILL, while jobs run and are submitted.

python -m benchmarks.bench_kills [--kills 100] [--jobs 950]

This is ``benchmarks.chaos`` with only its kills of workers. docs/internals/reliability.md explains what is counted, and
compares with Celery and RQ.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.measure.figure import Absent, Figure, Measured
from benchmarks.measure.options import how_many
from benchmarks.measure.place import ROOT
from benchmarks.measure.table import report

KILLS, JOBS = 100, 950


def figures(*, quick: bool = False, kills: int = KILLS, jobs: int = JOBS) -> Measured:
    """Yield the number of jobs that were lost, doubled, orphaned, wrong or left behind."""
    words = ["--short"] if quick else ["--jobs", str(jobs), "--kills", str(kills)]
    chaos = [sys.executable, "-m", "benchmarks.chaos", *words, "--only", "worker SIGKILL", "--json"]
    done = _done(chaos)
    try:
        plain: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        yield Absent(name="kills", why=f"the chaos run broke off: {done.stderr.strip().splitlines()[-1:]}")
        return
    yield from _counted(plain)


def _done(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run *words* to their end. If this process is stopped, they first clean up what they started."""
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, complained = process.communicate()
        except BaseException:
            process.terminate()
            process.communicate()
            raise
    return subprocess.CompletedProcess(words, process.returncode, output, complained)


def _counted(plain: dict[str, Any]) -> Measured:
    kills = sum(plain["kills"].values())
    yield Figure(name="kills.count", value=float(kills), unit="kills", of=plain["acknowledged"])
    for fault, count in plain["faults"].items():
        yield Figure(name=f"kills.{fault}", value=float(count), unit="jobs", of=kills)


def main() -> None:
    """Kill workers, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=how_many, default=KILLS)
    parser.add_argument("--jobs", type=how_many, default=JOBS)
    options = parser.parse_args()
    report(figures(kills=options.kills, jobs=options.jobs))


if __name__ == "__main__":
    main()
