"""Which signal ends a process of a pilot, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bounded import until

from gpuqueue.system.process import SHIELDED
from workers.shim import preempt_request

#: Says at which signal it stops, whether the allocation ends, and whether its children would ignore a signal.
PROGRAM = """
import signal, subprocess, sys, time
from gpuqueue.system.process import is_ending, shield, stop_signal
stopped = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _: stopped.append(number))
shield()
shield()
print("ready", int(stop_signal()), flush=True)
seen = False
while not stopped:
    time.sleep(0.02)
    if is_ending() and not seen:
        seen = True
        print("ending", flush=True)
print("stopped", int(stopped[0]))
status = next(line for line in open("/proc/self/status") if line.startswith("SigIgn"))
print("ignores TERM" if int(status.split()[1], 16) & (1 << (signal.SIGTERM - 1)) else "ignores nothing")
"""


@pytest.mark.parametrize(
    ("environ", "numbers", "lines"),
    [
        ({}, [signal.SIGTERM], ["ready 15", "stopped 15", "ignores nothing"]),
        ({SHIELDED: "1"}, [signal.SIGTERM, signal.SIGINT], ["ready 2", "ending", "stopped 2", "ignores nothing"]),
    ],
)
def test_a_shielded_process_ends_on_another_signal(
    environ: dict[str, str], numbers: list[signal.Signals], lines: list[str], tmp_path: Path
) -> None:
    """SIGTERM is noted there, and is no reason to end. Elsewhere nothing is different."""
    with (tmp_path / "out").open("w") as out:
        words = [sys.executable, "-c", PROGRAM]
        process = subprocess.Popen(words, env={**os.environ, **environ}, stdout=out)
    for number, line in zip(numbers, lines, strict=False):
        until(lambda line=line: line in (tmp_path / "out").read_text(), what=line)
        process.send_signal(number)
        if number is signal.SIGTERM and environ:
            until(lambda: "ending" in (tmp_path / "out").read_text(), what="the note")
    assert 0 == process.wait(timeout=30)
    assert lines == (tmp_path / "out").read_text().splitlines()


def test_the_shim_knows_the_same_variable() -> None:
    """It imports nothing of gpuqueue."""
    assert SHIELDED == preempt_request.SHIELDED
