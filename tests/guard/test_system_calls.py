"""What the kernel is asked for: files opened, programs started, waits for the disk. Counted by strace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from factories import make_offer, serve
from guard.bounds import Bound
from guard.one_life import STEPS, OneLife, uncovered
from guard.traced import NEEDS_STRACE, OPENS, SYNCS, attached, strace, succeeded, traced_program
from one_shim import Shim
from own_store import OwnStore

from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system.process import ProcessIdentity

pytestmark = NEEDS_STRACE

#: Jobs of which each step's waits of the store for the disk are counted: one each, or the promise of P1 is broken, or
#: paid twice. The store looks after its own files in between; it may come to a wait of its own.
JOBS, WAITS = 3, Bound(3, 4)
#: Files that a shim opens from its start to its end, those of its Python included (measured: 68 with Python 3.11),
#: and the programs that are started: itself and the job.
SHIM_OPENS, SHIM_STARTS = Bound(34, 80), 2
#: How often a shim and its job ask for or set what a signal does. Python itself asks for each of 64 at its start, and a
#: shim set each of them once more. Measured: 69, of 126 before.
SHIM_SIGNALS = Bound(35, 76)
#: Files that ``gpuqueue submit`` opens beyond ``python -c "import click"``: modules and directories, as many each time.
#: Measured on each version of Python; SPARE is for another place where Python looks for modules, which is opened as
#: well. A module more is a file more. Of a version that is not among them only MANY is known.
SUBMIT_OPENS = {(3, 10): 117, (3, 11): 118, (3, 12): 120, (3, 13): 125}
SPARE, MANY = 4, 172


def waits_for_the_disk(store: OwnStore, out: Path, act: Callable[[], object]) -> int:
    """Return how often the server of *store* waited for the disk while *act* ran."""
    identity = ProcessIdentity.parse((store.settings.state_dir / "store" / "pid").read_text())
    assert identity is not None
    with attached(out, SYNCS, identity.pid):
        act()
    return succeeded(out).total()


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_one_wait_for_the_disk(life: OneLife, tmp_path: Path, step: str) -> None:
    """With ``appendfsync always`` what was told survives a power cut, for the price of one wait a step."""
    waits = 0
    for number in range(JOBS):
        for name, act in life.steps().items():
            if name == step:
                waits += waits_for_the_disk(life.store, tmp_path / str(number), act)
            else:
                act()

    WAITS.hold(waits, f"waits for the disk of {step}, {JOBS} times")


def test_a_shim_opens_little_and_starts_only_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands between the claim and the job's first instruction, once for each job."""
    out = tmp_path / "calls"
    counting = traced_program(tmp_path, out, f"{OPENS},execve", sys.executable)
    monkeypatch.setattr(sys, "executable", str(counting))

    shim = Shim(tmp_path / "runs", ["/bin/true"])
    shim.ended()

    found = succeeded(out)
    assert SHIM_STARTS == found["execve"], found
    SHIM_OPENS.hold(sum(found[each] for each in OPENS.split(",")), "files opened by a shim and its job")


def test_a_shim_waits_for_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the exit, which is told nowhere else. Who it is was synced as well, and each start waited for that."""
    out = tmp_path / "calls"
    counting = traced_program(tmp_path, out, f"{SYNCS},execve", sys.executable)
    monkeypatch.setattr(sys, "executable", str(counting))

    shim = Shim(tmp_path / "runs", ["/bin/true"])
    shim.ended()

    found = succeeded(out)
    found.pop("execve")
    assert 1 == found.total(), found


def test_a_shim_sets_only_the_signals_that_are_not_as_they_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the fork and the job's first instruction stood sixty calls of the kernel that changed nothing."""
    out = tmp_path / "calls"
    counting = traced_program(tmp_path, out, "rt_sigaction", sys.executable)
    monkeypatch.setattr(sys, "executable", str(counting))

    shim = Shim(tmp_path / "runs", ["/bin/true"])
    shim.ended()

    SHIM_SIGNALS.hold(succeeded(out)["rt_sigaction"], "signals asked for or set by a shim and its job")


def test_a_submit_opens_no_more_files_than_agreed(own_store: OwnStore, tmp_path: Path) -> None:
    """Each is a look at the disk, over NFS a round trip: homes lie there."""
    queue = JobQueue(own_store.url)
    queue.open(0)
    serve(queue, make_offer())
    queue.close()
    # In no repository: what git opens there is not ours.
    environ = {**uncovered(), "GPUQUEUE_STATE_DIR": str(own_store.settings.state_dir)}
    words = ["-c", "from gpuqueue.cli.main import main; main()", "submit", "--mem", "1M", "--", "true"]
    found = {}
    for name, line in (("submit", words), ("click", ["-c", "import click"])):
        for _ in range(2):  # the first may still have to compile
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
