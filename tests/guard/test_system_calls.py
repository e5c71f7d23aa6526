"""Tests that bound the system calls: files opened, programs started, waits for the disk. strace counts them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from factories import make_offer, serve
from guard.bounds import Bound
from guard.one_life import STEPS, OneLife, uncovered
from guard.traced import NEEDS_STRACE, SYNCS, attached, strace, succeeded
from own_store import OwnStore

from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system.process import ProcessIdentity

pytestmark = NEEDS_STRACE

#: The number of jobs, and the bound for the store's disk waits of one step over all of them. Each step needs one wait:
#: with fewer, promise P1 is broken; more are wasted. The store also maintains its own files, which may add one wait.
JOBS, WAITS = 3, Bound(3, 4)
#: Files that ``gpuqueue submit`` opens beyond ``python -c "import click"``: modules and directories, always the same
#: number. Measured on each version of Python. SPARE allows for another directory in which Python searches for modules.
#: One more module is one more file. For a version that was not measured the bound is MANY.
SUBMIT_OPENS = {(3, 10): 143, (3, 11): 144, (3, 12): 146, (3, 13): 151}
SPARE, MANY = 4, 194


def waits_for_the_disk(store: OwnStore, out: Path, act: Callable[[], object]) -> int:
    """Return how often the server of *store* waited for the disk while *act* ran."""
    identity = ProcessIdentity.parse((store.settings.state_dir / "store" / "pid").read_text())
    assert identity is not None
    with attached(out, SYNCS, identity.pid):
        act()
    return succeeded(out).total()


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_one_wait_for_the_disk(life: OneLife, tmp_path: Path, step: str) -> None:
    """Each step costs the store one wait for the disk.

    With ``appendfsync always`` an acknowledged step survives a power cut.
    """
    waits = 0
    for number in range(JOBS):
        for name, act in life.steps().items():
            if name == step:
                waits += waits_for_the_disk(life.store, tmp_path / str(number), act)
            else:
                act()

    WAITS.hold(waits, f"waits for the disk of {step}, {JOBS} times")


def test_a_submit_opens_no_more_files_than_agreed(own_store: OwnStore, tmp_path: Path) -> None:
    """A submit opens no more files than agreed.

    Home directories are often on NFS, where each open is a round trip.
    """
    queue = JobQueue(own_store.url)
    queue.recovery.open(0)
    serve(queue, make_offer())
    queue.close()
    # Run outside a repository: the files that git opens there must not count.
    environ = {**uncovered(), "GPUQUEUE_STATE_DIR": str(own_store.settings.state_dir)}
    words = ["-c", "from gpuqueue.cli.main import main; main()", "submit", "--mem", "1M", "--", "true"]
    found = {}
    for name, line in (("submit", words), ("click", ["-c", "import click"])):
        for _ in range(2):  # the first run may still compile modules
            out = tmp_path / name
            done = subprocess.run(
                strace(out, "openat,open", sys.executable, *line),
                env=environ,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert 0 == done.returncode, done.stderr
        found[name] = succeeded(out).total()

    usual = SUBMIT_OPENS.get(sys.version_info[:2], MANY - SPARE)
    opened = found["submit"] - found["click"]
    Bound(usual // 2, usual + SPARE).hold(opened, "files opened by gpuqueue submit beyond click's")
