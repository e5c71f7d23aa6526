from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.system.process import ProcessIdentity
from workers.devices.cpu import CpuBackend
from workers.devices.simulated import SimulatedBackend
from workers.measure.monitor import external_process_of, owners
from workers.run import process_tree
from workers.run.environment import TOKEN

CLONE_NEWNS, MS_REC, MS_PRIVATE, PR_SET_DUMPABLE, NOBODY = 0x20000, 0x4000, 1 << 18, 4, 65534


def under_hidepid(how: int, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of *work* under an account to which /proc hides other processes.

    Skips where that needs root.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        reported: dict[str, Any] = {"failed": "it did not come so far"}
        try:
            reported = _hidden(how, work)
        except Exception as error:  # noqa: BLE001 - the other side must hear of it
            reported = {"failed": f"{type(error).__name__}: {error}"}
        finally:
            os.write(writer, json.dumps(reported).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as words:
        reported = json.load(words)
    os.waitpid(child, 0)
    if "skip" in reported:
        pytest.skip(reported["skip"])
    assert "failed" not in reported, reported
    return reported


def _hidden(how: int, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    work()  # imports lazily imported modules now: the account ``nobody`` may not be able to read them
    libc = ctypes.CDLL(None, use_errno=True)
    private = libc.unshare(CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
    if not private or libc.mount(b"proc", b"/proc", b"proc", 0, f"hidepid={how}".encode()) != 0:
        return {"skip": f"a /proc of its own needs root: {os.strerror(ctypes.get_errno())}"}
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # like any process that this account has started
    return work()


def surroundings() -> dict[str, Any]:
    """Do all that a worker does with /proc, with another process of its own account beside it."""
    token = f"1.hidden-{os.getpid()}"
    child = os.fork()
    if child == 0:
        os.execve("/bin/sleep", ["sleep", "1000"], {TOKEN: token})  # noqa: S606 - no shell is wanted
    deadline = time.monotonic() + 30
    while not process_tree.carrying(TOKEN, token) and time.monotonic() < deadline:
        os.sched_yield()
    identity = ProcessIdentity.of(child)
    simulated, cpu = SimulatedBackend("h", "sim:1x1G"), CpuBackend("h")
    (device,), (processor,) = simulated.devices(), cpu.devices()
    external = external_process_of(1, 5)
    return {
        "hidden": process_tree.hides_others(),
        "init": str(ProcessIdentity.of(1)),
        "below": child in process_tree.below(os.getpid()),
        "alive": identity is not None and identity.alive(),
        "owned": owners([1, child], {token: None}).get(child) == token,
        "simulated": simulated.reading(device).total_bytes,
        "cpu": cpu.reading(processor).free_bytes > 0,
        "used": (cpu.used_by(cpu.reading(processor), [1, child]) or 0) > 0,
        "external": [external.user, external.command],
        "swept": process_tree.sweep(TOKEN, token),
        "ended": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
    }


@pytest.mark.parametrize("how", [1, 2], ids=["no access", "invisible"])
def test_a_proc_that_hides_others_hides_nothing_of_ours(how: int) -> None:
    """With hidepid only external processes cannot be named.

    Runs are still found, measured and swept.
    """
    reported = under_hidepid(how, surroundings)

    nameless = reported.pop("external")
    assert nameless[1] is None
    assert {
        "hidden": True,
        "init": "None",
        "below": True,
        "alive": True,
        "owned": True,
        "simulated": 2**30,
        "cpu": True,
        "used": True,
        "swept": 1,
        "ended": -signal.SIGKILL,
    } == reported


def test_a_usual_proc_hides_nobody() -> None:
    """A /proc without hidepid is not reported as hiding processes.

    Otherwise every worker would warn without a reason.
    """
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    if any(where == "/proc" and "hidepid=" in options for _, where, _, options, *_ in mounts):
        pytest.skip("this very /proc hides others")

    assert not process_tree.hides_others()
    assert ProcessIdentity.of(1) is not None
