"""Measures what a pilot costs beside plain sbatch of the same script, on a private Slurm, in the same run.

    PYTHONPATH=.:tests/support python benchmarks/pilot_times.py [--jobs 10]

Prints four times, each until the first line of the script: from sbatch, from asking for a pilot, from a submit to a
pilot that runs, and from the turn in which the rule asks for a pilot. And it prints how long the same work takes in an
allocation and on the pilot. Slurm and the site share the cores of this machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psutil
from bounded import until
from pilot_site import PilotSite, pilot_site
from private_slurm import PrivateSlurm, running_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuqueue.service.bursting import Burster

#: Notes when it begins, works for some seconds of one core, and notes when it ends.
SCRIPT = """\
#!/bin/sh
date +%s.%N > {mark}.new && mv {mark}.new {mark}
python3 -c 'sum(range(100_000_000))'
date +%s.%N > {mark}.end.new && mv {mark}.end.new {mark}.end
"""


@contextmanager
def place(prefix: str) -> Iterator[Path]:
    """Make a directory with a short name, and remove it."""
    made = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


class Work:
    """The same script, each time with marks of its own."""

    def __init__(self, files: Path) -> None:
        self._files = files
        self._number = 0

    def script(self) -> Path:
        """Return the path of a new script."""
        self._number += 1
        path = self._files / f"{self._number}.sh"
        path.write_text(SCRIPT.format(mark=path.with_suffix("")))
        path.chmod(0o755)
        return path

    def times(self, script: Path, asked_s: float) -> tuple[float, float]:
        """Wait for the end of *script*; return the seconds until its first line, and those that its work took."""
        marks = script.with_suffix(""), script.with_suffix(".end")
        until(lambda: all(mark.exists() for mark in marks), what=str(script), timeout_s=300)
        began_s, ended_s = (float(mark.read_text()) for mark in marks)
        return began_s - asked_s, ended_s - began_s


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", type=int, default=10)
    jobs = arguments.parse_args().jobs
    for name in [name for name in os.environ if name.startswith("GPUQUEUE_")]:
        del os.environ[name]  # the user's own settings
    os.environ["GPUQUEUE_CONFIG"] = os.devnull
    with ExitStack() as stack:
        for_slurm, for_pilots, files = (stack.enter_context(place(f"gq{each}-")) for each in "spw")
        slurm = stack.enter_context(running_slurm(for_slurm))
        site = stack.enter_context(pilot_site(slurm, for_pilots))
        os.environ.update({name: slurm.environ[name] for name in ("PATH", "SLURM_CONF")})
        measure(slurm, site, Work(files), jobs)


def measure(slurm: PrivateSlurm, site: PilotSite, work: Work, jobs: int) -> None:
    """Measure one after the other, so that nothing else runs."""
    plain = [work.times(*by_sbatch(slurm, work.script())) for _ in range(jobs)]
    script = work.script()
    submitted_s = time.time()
    site.submit("--", str(script))
    asked_s = time.time()
    host = site.burst()
    to_pilot_s, _ = work.times(script, asked_s)
    on_pilot = [work.times(*by_submit(site, work.script())) for _ in range(jobs)]
    memory_bytes = sum(process.memory_full_info().pss for process in of_pilot(site, host))
    site.cli("burst", "cancel", host)
    site.until_gone(host)
    script = work.script()
    site.submit("--", str(script))
    with site.rule(when_waiting="1s", hours="1", devices="sim:1x8G") as burster:
        until(lambda: time.time() - submitted_s > 1, what="the time of the rule")
        asked_s = until(lambda: asking(burster, slurm), what="a pilot", timeout_s=60)
        by_rule_s, _ = work.times(script, asked_s)
    site.cli("burst", "cancel", "--all")
    for name, seconds in (
        ("sbatch to the first line", median(waited for waited, _ in plain)),
        ("submit to the first line, on a pilot that runs", median(waited for waited, _ in on_pilot)),
        ("burst slurm to the first line of a job that waits", to_pilot_s),
        ("turn of the rule to the first line of a job that waits", by_rule_s),
        ("the work by sbatch", median(took for _, took in plain)),
        ("the work on the pilot", median(took for _, took in on_pilot)),
    ):
        sys.stdout.write(f"{name:<56}{seconds:8.2f} s\n")
    sys.stdout.write(f"{'memory of the pilot, two devices (PSS)':<56}{memory_bytes / 2**20:8.0f} MiB\n")


def asking(burster: Burster, slurm: PrivateSlurm) -> float | None:
    """Let the rule look once; return when that turn began if it has asked for a pilot."""
    began_s = time.time()
    burster.turn()
    return began_s if slurm.listed("--states=PENDING,RUNNING,CONFIGURING") else None


def by_sbatch(slurm: PrivateSlurm, script: Path) -> tuple[Path, float]:
    """Hand *script* to Slurm; return it and when."""
    asked_s = time.time()
    slurm.command("sbatch", "--gres=gpu:1", "--output=/dev/null", str(script))
    return script, asked_s


def by_submit(site: PilotSite, script: Path) -> tuple[Path, float]:
    """Submit *script* to the queue; return it and when."""
    asked_s = time.time()
    site.submit("--", str(script))
    return script, asked_s


def of_pilot(site: PilotSite, host: str) -> Iterator[psutil.Process]:
    """Yield the processes of a pilot."""
    place = f"{site.place}/gpuqueue-{host.partition('-')[2]}-"
    for process in psutil.process_iter():
        try:
            if process.environ().get("GPUQUEUE_CONFIG", "").startswith(place):
                yield process
        except psutil.Error:
            continue


if __name__ == "__main__":
    main()
