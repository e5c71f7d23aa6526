"""What strace reports of a process and its children."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from becoming import becoming

STRACE = shutil.which("strace")
NEEDS_STRACE = pytest.mark.skipif(STRACE is None, reason="no strace here to count system calls: apt install strace")
#: Calls that open a file, and those that wait for the disk.
OPENS, SYNCS = "openat,open,creat", "fsync,fdatasync,sync_file_range,syncfs,sync"
#: A call that another process interrupts takes two lines, with the result in the second.
_LINE = re.compile(r"^(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*?)(?:(<unfinished \.\.\.>)|\) += (-?\d+)\b.*)$")


@dataclass(frozen=True)
class Call:
    """A system call that succeeded."""

    pid: int
    name: str
    words: str

    @property
    def file(self) -> str:
        """Return the first path among its arguments, with process numbers replaced; empty if there is none."""
        found = re.search(r'"([^"]*)"', self.words)
        return "" if found is None else re.sub(r"^/proc/\d+/", "/proc/PID/", found[1])


def strace(out: Path, calls: str, *words: str) -> list[str]:
    """Return a command line that writes system calls into *out*, of all children, too."""
    assert STRACE is not None
    return [STRACE, "-f", "-qq", "-o", str(out), "-e", f"trace={calls}", *words]


def traced_program(place: Path, out: Path, calls: str, program: str) -> Path:
    """Return a program in *place* that runs *program* and writes each of *calls* into *out*."""
    return becoming(place / "counting", *strace(out, calls, program))


@contextmanager
def attached(out: Path, traced: str, pid: int) -> Iterator[None]:
    """Write each call of *traced* that the process *pid* makes, in any of its threads, into *out* meanwhile."""
    words = strace(out, traced, "-p", str(pid))
    words.remove("-qq")  # without it strace reports when it has attached
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        output = tracer.stderr.readline()
        if "attached" not in output:
            tracer.wait()
            pytest.skip(f"strace may not look at another process here: {output.strip()}")
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.stderr.read()


def succeeded(out: Path) -> Counter[str]:
    """Return how often each call succeeded."""
    return Counter(call.name for call in calls(out))


def calls(out: Path) -> Iterator[Call]:
    """Yield each call that succeeded, in the order of their ends."""
    begun: dict[int, str] = {}
    for line in out.read_text(errors="replace").splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        pid, resumed, name, words, unfinished, result = found.groups()
        if unfinished:
            begun[int(pid)] = words
        elif not result.startswith("-"):
            yield Call(int(pid), resumed or name, (begun.pop(int(pid), "") if resumed else "") + words)
