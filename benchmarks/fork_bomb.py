"""Measures the seconds until a fork bomb is gone after its time limit, beside a SIGKILL to as many idle processes.

    python -m benchmarks.fork_bomb [--processes 2500] [--rounds 3]

The bomb is a job of one person's `up`. Each of its processes forks whenever it can, up to the limit of its account, has
a session of its own, and ignores SIGTERM. The time counts from the end of the grace after that to the end of the run.
Only root can run it: the bomb becomes an account that nobody has, whose processes alone count.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time

from benchmarks.measure.figure import Absent, Figure, Floor, Measured
from benchmarks.measure.options import how_many
from benchmarks.measure.place import Machine, private_machine
from benchmarks.measure.table import report

PROCESSES, ROUNDS = 2500, 3
LIMIT_S = 10.0
#: A user id that no account has.
NOBODY_S_UID = 61_234
BOMB = f"""
import os, resource, signal, sys, time
count = int(sys.argv[1])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setgroups([])
os.setgid({NOBODY_S_UID})
os.setuid({NOBODY_S_UID})
resource.setrlimit(resource.RLIMIT_NPROC, (count, count))
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        time.sleep(0.05)
"""


def figures(*, processes: int = PROCESSES, rounds: int = ROUNDS) -> Measured:
    """Yield the seconds until a bomb of so many processes is gone."""
    if os.geteuid() != 0:
        yield Absent(name="fork_bomb.gone", why="only root can give it an account of its own")
        return
    found, bare = [], []
    with private_machine() as machine:
        for _ in range(rounds):
            bare.append(_bare(processes))
            found.append(_bomb(machine, processes))
    floor = Floor(name="SIGKILL to as many", value=statistics.median(bare))
    yield Figure(
        name="fork_bomb.gone", value=statistics.median(found), unit="s", floor=floor, rounds=rounds, of=processes
    )


def _bomb(machine: Machine, processes: int) -> float:
    """Run a bomb until its time limit. Return how long its end took, in seconds."""
    argv = [sys.executable, "-I", "-S", "-c", BOMB, str(processes)]
    job = machine.client.jobs.submit(argv, mem="64M", time_limit=f"{LIMIT_S:g}s")
    run = machine.client.jobs.wait(job.id).last_run
    if run is None or run.duration_s is None:
        raise RuntimeError("the history does not have the run")
    return max(0.0, run.duration_s - LIMIT_S - machine.settings.kill_grace_s)


def _bare(processes: int) -> float:
    """Return how long it takes to kill and reap so many processes that only wait, in seconds."""
    children = [subprocess.Popen(["/bin/sleep", "1000"]) for _ in range(processes)]
    began_s = time.monotonic()
    for child in children:
        child.send_signal(signal.SIGKILL)
    for child in children:
        child.wait()
    return time.monotonic() - began_s


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=how_many, default=PROCESSES)
    parser.add_argument("--rounds", type=how_many, default=ROUNDS)
    options = parser.parse_args()
    report(figures(processes=options.processes, rounds=options.rounds))


if __name__ == "__main__":
    main()
