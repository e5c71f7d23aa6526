"""How long a person waits for each command, beside what Python and click alone take in the same run.

python benchmarks/bench_commands.py [--rounds 15] [--json] [COMMAND…]

Starts a private machine (embedded store, recorder, one simulated device and its worker) in a temporary directory.
Every round runs each command once as a whole process, and each floor once; medians are printed, and ratios.
A command that would take the machine down, or wants a terminal, only prints its help: the table says so.
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
from pathlib import Path

from gpuqueue import Client, Settings
from gpuqueue.cli.main import COMMANDS

GPUQUEUE = str(Path(sys.executable).parent / "gpuqueue")
FLOORS = {"python": [sys.executable, "-c", "pass"], "click": [sys.executable, "-c", "import click"]}
HELP = ("--help",)
#: What stands behind a command. ENDED is a job that has ended, HELD one that is held, WAITING one that waits.
WORDS = {
    "submit": ("--mem", "1M", "--", "true"),
    "run": ("--mem", "1M", "--", "true"),
    "queue": (),
    "show": ("ENDED",),
    "why": ("WAITING",),
    "logs": ("ENDED",),
    "wait": ("ENDED",),
    "cancel": ("WAITING",),
    "hold": ("WAITING",),
    "release": ("HELD",),
    "history": (),
    "stats": (),
    "gpus": (),
    "drain": ("0",),
    "resume": ("0",),
    "up": ("--devices", "sim:1x8G"),
    "status": (),
}


class Machine:
    """A private machine that is up, and jobs to do things to."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._environ = environ
        self._client = Client(Settings.load(environ))
        self._ended = self._client.submit(["true"], mem="1M").id
        self._client.wait(self._ended)

    def timed(self, command: str) -> float:
        """Return how long the process of *command* takes; what it is done to is made before, and gone after."""
        words = WORDS.get(command, HELP)
        waiting = None
        if {"HELD", "WAITING"} & set(words):
            waiting = self._client.submit(["true"], mem="1M", device="cpu").id  # no CPU is served here
            if "HELD" in words:
                self._client.hold(waiting)
        jobs = {"ENDED": str(self._ended), "WAITING": str(waiting), "HELD": str(waiting)}
        line = [jobs.get(word, word) for word in words]
        took_s = self.process([GPUQUEUE, command, *line])
        if waiting is not None:
            self._client.queue.cancel(waiting)
        return took_s

    def process(self, words: list[str]) -> float:
        """Return how long a process takes, in seconds."""
        began = time.perf_counter()
        subprocess.run(words, env=self._environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def measured(machine: Machine, commands: list[str], rounds: int) -> dict[str, float]:
    """Return the median seconds of each floor and each command, all of them once in every round."""
    took: dict[str, list[float]] = {name: [] for name in (*FLOORS, *commands)}
    for _ in range(rounds):
        for name, line in FLOORS.items():
            took[name].append(machine.process(line))
        for name in commands:
            took[name].append(machine.timed(name))
    return {name: statistics.median(each) for name, each in took.items()}


def main() -> None:
    """Measure all and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="only these; all if none is named")
    options = parser.parse_args()
    commands = options.commands or list(COMMANDS)
    with tempfile.TemporaryDirectory(prefix="gpuqueue-bench-") as place:
        environ = {**os.environ, "GPUQUEUE_STATE_DIR": place, "GPUQUEUE_CONFIG": os.devnull}
        if environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # nobody who installed it waits for the compiler
            environ["PYTHONPYCACHEPREFIX"] = f"{place}/compiled"
        up = [GPUQUEUE, "up", "--devices", "sim:1x8G"]
        subprocess.run(up, env=environ, stdout=subprocess.DEVNULL, check=True)
        try:
            machine = Machine(environ)
            measured(machine, commands, 1)  # to warm up
            took = measured(machine, commands, options.rounds)
            machine.close()
        finally:
            subprocess.run([GPUQUEUE, "down", "--cancel-jobs"], env=environ, stdout=subprocess.DEVNULL, check=True)
    figures = {
        name: {
            "ms": took[name] * 1e3,
            "to_click": took[name] / took["click"],
            "to_python": took[name] / took["python"],
            "help_only": name in commands and name not in WORDS,
        }
        for name in took
    }
    if options.json:
        print(json.dumps({"rounds": options.rounds, "figures": figures, "load": os.getloadavg()}, indent=2))
        return
    print(f"{'whole process':20} {'median':>10} {'to click':>9} {'to python':>10}")
    for name, each in figures.items():
        what = f"{name} --help" if each["help_only"] else name
        print(f"{what:20} {each['ms']:8.1f}ms {each['to_click']:9.2f} {each['to_python']:10.2f}")
    print("load average: " + ", ".join(f"{each:.1f}" for each in os.getloadavg()))


if __name__ == "__main__":
    main()
