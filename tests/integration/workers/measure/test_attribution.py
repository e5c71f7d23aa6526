"""Tests that find the run of a process.

The processes are real: forked twice, orphaned, external, and with a reused pid.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.system.process import ProcessIdentity
from workers.measure.monitor import owners, pids_by_run
from workers.run.environment import TOKEN

#: A subreaper, like the shim, with a child and a daemon that left its session twice. Prints all three pids.
FAMILY = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
out, told = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.write(told, f"{os.getpid()} ".encode())
            signal.pause()
        os._exit(0)
    os.wait()
    os.write(told, f"{os.getpid()} ".encode())
    signal.pause()
words = b""
while words.count(b" ") < 2:
    words += os.read(out, 100)
print(os.getpid(), *sorted(map(int, words.split())), flush=True)
signal.pause()
"""


@contextmanager
def family(token: str | None = None) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a shim-like process with its process tree; yield it and the pids below it."""
    environ = {name: value for name, value in os.environ.items() if name != TOKEN}
    if token is not None:
        environ[TOKEN] = token
    process = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout
    top, *below = map(int, process.stdout.readline().split())
    assert top == process.pid
    try:
        yield process, below
    finally:
        for pid in (*below, process.pid):
            os.kill(pid, 9)
        with process:
            pass


def shim(pid: int) -> ProcessIdentity:
    """Return the identity of *pid*."""
    identity = ProcessIdentity.of(pid)
    assert identity is not None
    return identity


def test_every_process_below_a_shim_is_its_runs_and_nobody_elses() -> None:
    """Every process below a shim belongs to its run, without any token.

    Children, and daemons that left their session twice, are found by their parents.
    """
    with family() as (one, ours), family() as (other, theirs):
        shims = {"1.a": shim(one.pid), "1.b": shim(other.pid), "1.c": None}

        found = owners([*ours, *theirs, os.getpid(), 4_000_001], shims)

        assert dict.fromkeys(ours, "1.a") | dict.fromkeys(theirs, "1.b") == found


def test_a_run_whose_shim_was_killed_is_known_by_its_token() -> None:
    """A process whose shim was killed is found by its token in the environment.

    Its parents then end at init. A token of another run is not matched.
    """
    with family("1.a") as (process, below):
        identity = shim(process.pid)
        process.kill()
        process.wait()

        assert dict.fromkeys(below, "1.a") == owners(below, {"1.a": identity})
        assert {} == owners(below, {"1.b": None})
        process.returncode = 0
        process.pid = below[0]  # lets `family` end the process


def test_a_later_process_with_the_shims_number_owns_nothing() -> None:
    """A later process with the shim's pid owns nothing, because its start time differs."""
    with family() as (process, below):
        earlier = ProcessIdentity(process.pid, shim(process.pid).started - 1, shim(process.pid).boot)

        assert {} == owners(below, {"1.a": earlier})


def test_hidden_processes_are_external(tmp_path: Path) -> None:
    """Processes that /proc hides, as with hidepid, count as external, without an error."""
    assert {} == owners([os.getpid()], {"1.a": shim(os.getppid())}, proc=tmp_path)


@pytest.mark.parametrize("kind", [DeviceKind.CPU, DeviceKind.GPU])
def test_a_gpu_lists_its_processes_and_the_cpu_has_all_of_them(kind: DeviceKind) -> None:
    """On a GPU only the listed processes of a run count; on the CPU all of them do."""
    device = Device(uuid="d", index=0, name="d", kind=kind, total_bytes=100)
    with family() as (process, below):
        reading = Reading(total_bytes=100, free_bytes=10, processes={below[1]: 80, os.getpid(): 10})

        found = pids_by_run(device, reading, {"1.a": shim(process.pid), "1.b": None})

        assert {"1.a": frozenset(below if kind is DeviceKind.CPU else below[1:])} == found
