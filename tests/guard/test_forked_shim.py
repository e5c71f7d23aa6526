"""What a shim asks of the kernel that is forked for its run, as those of every worker are.

Those of test_system_calls.py are started by themselves, as workers of older versions start theirs: that counts Python's
own start as well, and says nothing about what happens after the fork.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from guard.traced import NEEDS_STRACE, OPENS, SYNCS, Call, calls, traced_program
from one_shim import Shim

from workers.shim.client import Shims

pytestmark = NEEDS_STRACE

#: Files that a shim opens between the fork and its end, each by its name: what it is to run, who it is, of which boot,
#: and who the job is; its word of that, whole and then more; the log, and the exit. No module is among them: what a
#: shim needs was loaded before the fork, once for all runs; an import here is paid by each of them. A file more is a
#: look at the disk more for each run: if it is worth that, name it here and say why.
READ = {"spec", "/proc/sys/kernel/random/boot_id", "/proc/PID/stat"}
WRITTEN = {".pid", "pid", "log", ".exit"}
#: It looks at these as often as there is time for: whether somebody vouches for the run, and what is asked of it.
LOOKED_AT = {"beat", "cancel", "preempt.json"}
#: Files that the fork opens which becomes the job, before it does.
JOBS = {"/dev/null"}


@dataclass(frozen=True)
class Traced:
    """The calls of a shim, and those of its job until that was started."""

    shim: list[Call]
    job: list[Call]


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traced:
    """Return what is called from the fork of a shim on."""
    out = tmp_path / "calls"
    counting = traced_program(tmp_path, out, f"{OPENS},{SYNCS},execve", sys.executable)
    monkeypatch.setattr(sys, "executable", str(counting))
    by = Shims()
    shim = Shim(tmp_path / "runs", ["/bin/true"], by=by)
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
    """Return the files that were opened, to write or to read."""
    opens = [call for call in made if call.name in OPENS.split(",")]
    return {call.file for call in opens if to_write == (call.name == "creat" or "O_RDONLY" not in call.words)}


def test_a_forked_shim_opens_the_files_of_its_run_and_no_others(traced: Traced) -> None:
    """An import between the claim and the job's first instruction would show as the files of its modules."""
    assert READ == opened(traced.shim, to_write=False) - LOOKED_AT
    assert WRITTEN == opened(traced.shim, to_write=True)
    assert JOBS == opened(traced.job, to_write=False) | opened(traced.job, to_write=True)


def test_a_forked_shim_waits_for_the_disk_once(traced: Traced) -> None:
    """For the exit, which is told nowhere else."""
    assert {"fsync": 1} == Counter(call.name for call in traced.shim + traced.job if call.name in SYNCS.split(","))
