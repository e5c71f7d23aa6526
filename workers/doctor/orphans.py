"""Checks for orphans: processes with the token of a run whose shim is gone, so that nothing ends them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.finding import Finding, ok, problem
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity, each_process, is_locked
from workers.run.environment import TOKEN

#: How long the last processes of a run may take to exit after their shim, in seconds.
GOING_S = 0.5
RUN_DIR = "GPUQUEUE_RUN_DIR"
_MARKS = frozenset({TOKEN.encode(), RUN_DIR.encode()})


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    """A process of a run whose shim is gone."""

    pid: int
    job: str
    command: str


# ---- facts -----------------------------------------------------------------------------------------------------------


def facts_of(settings: Settings) -> tuple[Orphan, ...]:
    """Return the processes of runs without a shim that have not exited within ``GOING_S``."""
    found = [each for each in _carriers(settings.runs_dir) if not is_locked(each.directory / "lock")]
    deadline_s = time.monotonic() + GOING_S
    return tuple(
        Orphan(pid=each.process.pid, job=each.directory.parent.name, command=each.command)
        for each in found
        if not each.process.wait(max(0.0, deadline_s - time.monotonic()))
    )


@dataclass(frozen=True, slots=True)
class _Carrier:
    process: ProcessIdentity
    directory: Path
    command: str


def _carriers(runs: Path) -> Iterator[_Carrier]:
    """Yield the processes of the runs below *runs* that this account can read."""
    for entry in each_process():
        try:
            pairs = (word.partition(b"=") for word in (entry / "environ").read_bytes().split(b"\0"))
            found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name in _MARKS}
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        directory = Path(found.get(RUN_DIR, "/"))
        process = ProcessIdentity.of(int(entry.name))
        if TOKEN in found and directory.is_relative_to(runs) and process is not None:
            yield _Carrier(process, directory, words.decode(errors="replace").strip())


# ---- checks ----------------------------------------------------------------------------------------------------------


def orphans(facts: tuple[Orphan, ...]) -> Iterator[Finding]:
    """Report the processes that have outlived their run."""
    for each in facts:
        seen = f"pid {each.pid} of job {each.job} has no shim that would end it: {each.command[:80]}"
        yield problem(seen, f"kill -9 {each.pid}, unless it is there on purpose", about=f"pid {each.pid}")
    if not facts:
        yield ok("no process has outlived its run")


CHECKS = (orphans,)
