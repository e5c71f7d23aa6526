"""Tests that bound the system calls of a forked shim, as every worker forks it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from guard.bounds import Bound
from guard.traced import NEEDS_STRACE, OPENS, SYNCS, Call, calls, traced_program
from one_shim import Shim

from workers.shim.client import Shims

pytestmark = NEEDS_STRACE

#: Files that a shim opens between the fork and its end, by name. It reads the spec, the boot id and the process
#: identities; it writes the pid file, first whole and then by appending, the log and the exit. No module is among them:
#: all modules are loaded before the fork, once for all runs, and each run would pay for an import here. One more file
#: is one more disk access for each run. If it is worth that, add it here and say why. /dev/shm is in memory: its names
#: at the start and at the end show what the run has left there.
READ = {"spec", "/proc/sys/kernel/random/boot_id", "/proc/PID/stat", "/dev/shm"}
WRITTEN = {".pid", "pid", "log", ".exit"}
#: Files that a shim polls as often as time permits: the heartbeat and the requests to end.
POLLED = {"heartbeat", "cancel", "preempt.json"}
#: Files that the forked child opens before it becomes the job.
JOBS = {"/dev/null", "/proc/self/oom_score_adj"}
#: How often the forked child sets a signal's handler before it becomes the job: only those that differ from the
#: default. Measured: 3. It used to set each of 64.
SIGNALS = Bound(2, 5)


@dataclass(frozen=True)
class Traced:
    """The calls of a shim, and the calls of its job before the job's exec."""

    shim: list[Call]
    job: list[Call]


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traced:
    """Return the calls from the fork of a shim on."""
    out = tmp_path / "calls"
    counting = traced_program(tmp_path, out, f"{OPENS},{SYNCS},rt_sigaction,execve", sys.executable)
    monkeypatch.setattr(sys, "executable", str(counting))
    by = Shims()
    shim = Shim(tmp_path / "runs", ["/bin/true"], by=by, oom_score_adj=300)
    shim.ended()
    _, job = (shim.directory.path / "pid").read_text().splitlines()
    shim.process.close()
    shim.directory.close()
    by.close()
    found = list(calls(out))
    of_job = [call for call in found if call.pid == int(job.split()[0])]
    started = [call.name for call in of_job].index("execve")
    return Traced([call for call in found if call.pid == shim.process.pid], of_job[:started])


def opened(made: list[Call], *, to_write: bool) -> set[str]:
    """Return the files that were opened for writing, or those opened for reading."""
    opens = [call for call in made if call.name in OPENS.split(",")]
    return {call.file for call in opens if to_write == (call.name == "creat" or "O_RDONLY" not in call.words)}


def test_a_forked_shim_opens_the_files_of_its_run_and_no_others(traced: Traced) -> None:
    """A forked shim opens only the files of its run.

    An import between the claim and the job's first instruction would show as the files of its modules.
    """
    assert READ == opened(traced.shim, to_write=False) - POLLED
    assert WRITTEN == opened(traced.shim, to_write=True)
    assert JOBS == opened(traced.job, to_write=False) | opened(traced.job, to_write=True)


def test_a_forked_shim_waits_for_the_disk_once(traced: Traced) -> None:
    """A forked shim waits for the disk once, for the exit file, which is the only record of the exit."""
    assert {"fsync": 1} == Counter(call.name for call in traced.shim + traced.job if call.name in SYNCS.split(","))


def test_a_job_sets_only_the_signals_that_are_not_as_they_should_be(traced: Traced) -> None:
    """A forked child sets only the signal handlers that differ from the default."""
    SIGNALS.hold([call.name for call in traced.job].count("rt_sigaction"), "signals set before the job's exec")
