"""A new user's first steps with gpuqueue, typed into a real shell on a real terminal, on simulated devices.

The acceptance test checks that each step works; docs/pictures/record.py takes pictures on the way.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from bounded import until
from terminal import Terminal

PROMPT = "$"
#: The prompt in bold green, as many distributions show it.
PS1 = rf"\[\e[1;32m\]{PROMPT}\[\e[0m\] "
#: The user's script: it allocates memory, prints its epochs, and stops in the middle until a file exists.
TRAIN = """\
import argparse, pathlib, time

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
epochs = parser.parse_args().epochs
held = bytearray(b"1") * (400 * 2**20)  # what a model would take
for epoch in range(1, epochs + 1):
    print(f"epoch {epoch}/{epochs}  loss {2.3 / (1 + 0.4 * epoch):.4f}", flush=True)
    time.sleep(0.1)
    while epoch == 5 and not pathlib.Path("go").exists():
        time.sleep(0.05)
print("saved model.pt")
"""


class Shell(Terminal):
    """A shell in a directory, into which a test types."""

    def __init__(self, environ: Mapping[str, str], directory: Path, *, columns: int = 100, rows: int = 26) -> None:
        self._code = directory / ".code"
        wanted = {**environ, "PS1": PS1, "PROMPT_COMMAND": f"echo $? > {self._code}", "HISTFILE": "/dev/null"}
        self._environ = dict(environ)
        bash = ["bash", "--norc", "--noprofile", "-i"]
        super().__init__(bash, wanted, columns=columns, rows=rows, directory=directory)
        self.done()

    def types(self, line: str, *, code: int = 0) -> str:
        """Type a line, wait until it is done, and return the screen."""
        self.begins(line)
        self.done()
        assert code == self.code(), f"{line}\n{self.picture()}"
        return self.picture()

    def begins(self, line: str) -> None:
        """Type a line that runs until it is interrupted or left."""
        self.press(line)
        self.shows(f"{PROMPT} {line}")
        self.press("\n")

    def output_of(self, *command: str) -> str:
        """Return the output of *command*, which runs beside the shell and is not shown."""
        return subprocess.run(command, env=self._environ, capture_output=True, text=True, check=False).stdout

    def ends(self, keys: str, *, code: int) -> str:
        """End a running command with *keys*, and return the screen."""
        self.press(keys)
        self.done()
        assert code == self.code(), self.picture()
        return self.picture()

    def code(self) -> int:
        """Return the exit code of the last line."""
        return int(self._code.read_text())

    def done(self) -> None:
        """Wait until the shell shows its prompt."""
        until(lambda: self.line_of_cursor() == PROMPT, timeout_s=100, what="the prompt")


def walk(shell: Shell, place: Path) -> Iterator[str]:
    """Take all steps and yield the name of each; fail where something is not shown.

    *place* is the shell's directory.
    """
    (place / "train.py").write_text(TRAIN)
    assert "ready" in shell.types("gpuqueue up --devices sim:2x4G")
    yield "up"
    assert "\n1\n" in shell.types("gpuqueue submit train.py --mem 2G --time 1h")
    assert "\n2\n" in shell.types("gpuqueue submit train.py --mem 2G --time 2h --name bert -- --epochs 5000")
    assert "\n3\n" in shell.types("gpuqueue submit train.py --mem 2G --name patient")
    yield "submit"
    yield from _reads(shell)
    yield from _ends(shell, place)
    yield from _afterwards(shell, place)


def _reads(shell: Shell) -> Iterator[str]:
    """Show the state of the queue, and why a job waits."""
    seen = shell.types("gpuqueue queue")
    assert ["running", "running", "queued"] == [line.split()[3] for line in seen.rstrip().splitlines()[-4:-1]]
    assert "memory" in seen
    yield "queue"
    seen = shell.types("gpuqueue why 3")
    assert "WHY NOT THERE" in seen
    assert "512M too little: job 1" in seen
    assert "when job 1 must have ended" in seen
    yield "why"
    shell.begins("gpuqueue top")
    shell.shows("2 running, 1 waiting")
    shell.shows("5/12")
    shell.shows(" train.py ")
    shell.shows(" running ")
    shell.shows("q Quit")
    assert "█" in shell.shows("Simulated 4G")
    yield "top"
    shell.ends("q", code=0)


def _ends(shell: Shell, place: Path) -> Iterator[str]:
    """Follow one job to its end, and cancel another."""
    shell.begins("gpuqueue logs -f 1")
    shell.shows("epoch 5/12")
    (place / "go").touch()
    shell.shows("saved model.pt")
    shell.done()
    yield "logs"
    assert "job 2: cancelling" in shell.types("gpuqueue cancel 2")
    yield "cancel"
    shell.types("gpuqueue wait 3")
    yield "wait"


def _afterwards(shell: Shell, place: Path) -> Iterator[str]:
    """Show the results."""
    shell.types("gpuqueue wait 2", code=130)

    def recorded() -> bool:
        seen = shell.output_of("gpuqueue", "history")
        return "cancelled" in seen and seen.count("exit 0") == len(["train.py", "patient"])

    until(recorded, what="the history")
    assert "M*\n" in shell.types("gpuqueue history"), "the peaks"
    yield "history"
    assert "lab.svg" in shell.types("gpuqueue stats --plot lab.svg")
    assert (place / "lab.svg").read_text().rstrip().endswith("</svg>")
    yield "stats"
    shell.begins("gpuqueue doctor")
    shell.done()
    assert shell.code() in {0, 6}, "a machine may be warned of something, but nothing is broken"
    shell.shows("checks passed")
    yield "doctor"
    assert "workers  stopped" in shell.types("gpuqueue down")
    yield "down"
