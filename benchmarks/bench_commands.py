"""How long a user waits for each command, compared with Python and click alone in the same run.

python -m benchmarks.bench_commands [--rounds 15] [--json] [COMMAND…]

Starts a private machine (embedded store, recorder, one simulated device and its worker) in a temporary directory. Every
round runs each command once as a whole process, and each floor once; the table has medians and ratios. A command that
would take the machine down, needs a terminal, or works for seconds, only prints its help: its figure is called
``command.NAME.help``. ``import.MODULE`` is a process that only imports the module of a command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from benchmarks.measure.command import CLICK, IMPORT_CLICK
from benchmarks.measure.figure import Figure, Floor, Measured
from benchmarks.measure.home import to_the_end
from benchmarks.measure.options import how_many
from benchmarks.measure.place import GPUQUEUE, Machine, private_machine, quiet
from benchmarks.measure.rounds import alternate, medians, timed
from benchmarks.measure.table import closing, report
from gpuqueue.cli.main import COMMANDS

ROUNDS, QUICK_ROUNDS = 15, 3
PYTHON = "python -c pass"
FLOORS = {PYTHON: (sys.executable, "-c", "pass"), CLICK: IMPORT_CLICK}
HELP = ("--help",)
#: The arguments of each command. ENDED is a job that has ended, HELD one that is held, WAITING one that waits.
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
    "edit": ("WAITING", "--mem", "2M"),
    "history": (),
    "stats": (),
    "gpus": (),
    "limits": (),
    "top": ("--once",),
    "drain": ("0",),
    "resume": ("0",),
    "up": (),
    "status": (),
    "completion": ("bash",),
}


class Jobs:
    """Jobs for the commands, on a machine that is up."""

    def __init__(self, machine: Machine) -> None:
        self._environ, self._client = machine.environ, machine.client
        self._ended = self._client.jobs.submit(["true"], mem="1M").id
        self._client.jobs.wait(self._ended)

    def timed(self, command: str) -> float:
        """Return the seconds of a whole process of *command*; its job is created before and cancelled after."""
        words = WORDS.get(command, HELP)
        waiting = None
        if {"HELD", "WAITING"} & set(words):
            waiting = self._client.jobs.submit(["true"], mem="1M", device="cpu").id  # no CPU is served here
            if "HELD" in words:
                self._client.jobs.hold(waiting)
        jobs = {"ENDED": str(self._ended), "WAITING": str(waiting), "HELD": str(waiting)}
        took_s = self.process([GPUQUEUE, command, *(jobs.get(word, word) for word in words)])
        if waiting is not None:
            self._client.queue.jobs.cancel(waiting)
        return took_s

    def process(self, words: Sequence[str]) -> float:
        """Return the duration of a process, in seconds."""
        return timed(lambda: quiet(words, self._environ))


def figures(*, quick: bool = False, rounds: int | None = None, commands: Sequence[str] = ()) -> Measured:
    """Yield the whole process of each command and the import of its module, compared with click's."""
    rounds, names = rounds or (QUICK_ROUNDS if quick else ROUNDS), list(commands or COMMANDS)
    modules = sorted({COMMANDS[name][0] for name in names})
    with private_machine() as machine:
        jobs = Jobs(machine)
        acts = {name: partial(jobs.process, line) for name, line in FLOORS.items()}
        acts |= {
            f"import.{module}": partial(jobs.process, [sys.executable, "-c", f"import {module}"]) for module in modules
        }
        acts |= {_called(name): partial(jobs.timed, name) for name in names}
        alternate(1, acts)  # to warm up
        found = medians(alternate(rounds, acts))
    yield from _beside_floors(found, rounds)


def _called(command: str) -> str:
    return f"command.{command}.{'process' if command in WORDS else 'help'}"


def _beside_floors(found: dict[str, float], rounds: int) -> Iterator[Figure]:
    python, click = (Floor(name=name, value=found.pop(name) * 1e3) for name in FLOORS)
    yield Figure(name="floor.click", value=click.value, unit="ms", floor=python, rounds=rounds)
    for name, took_s in found.items():
        yield Figure(name=name, value=took_s * 1e3, unit="ms", floor=click, rounds=rounds)


def main() -> None:
    """Measure all and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=how_many, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="only these; all if none is named")
    options = parser.parse_args()
    unknown = sorted(set(options.commands) - set(COMMANDS))
    if unknown:
        parser.error(f"no such command: {', '.join(unknown)}; there are {', '.join(COMMANDS)}")
    measured = figures(rounds=options.rounds, commands=options.commands)
    if options.json:
        with to_the_end(), closing(measured):
            print(json.dumps([asdict(each) for each in measured], indent=1))
    else:
        report(measured)


if __name__ == "__main__":
    main()
