"""Checks for orphans: processes with the token of a run whose shim is gone, so that nothing ends them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from gpuqueue.model.finding import Finding, ok, problem
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity, each_process, is_locked
from workers.run.environment import TOKEN

#: How long the last processes of a run may take to exit after their shim, in seconds.
GOING_S = 0.5
RUN_DIR = "GPUQUEUE_RUN_DIR"
_MARKS = frozenset({TOKEN.encode(), RUN_DIR.encode()})


def orphans(settings: Settings) -> Iterator[Finding]:
    """Report the processes of runs without a shim that have not exited within ``GOING_S``."""
    alone = [item for item in _processes(settings.runs_dir) if not is_locked(item[1] / "lock")]
    deadline_s = time.monotonic() + GOING_S
    left = [item for item in alone if not item[0].wait(max(0.0, deadline_s - time.monotonic()))]
    for process, directory, command in left:
        seen = f"pid {process.pid} of job {directory.parent.name} has no shim that would end it: {command[:80]}"
        yield problem(seen, f"kill -9 {process.pid}, unless it is there on purpose", about=f"pid {process.pid}")
    if not left:
        yield ok("no process has outlived its run")


def _processes(runs: Path) -> Iterator[tuple[ProcessIdentity, Path, str]]:
    """Yield the processes of the runs below *runs* that this account can read, with run directory and command."""
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
            yield process, directory, words.decode(errors="replace").strip()


CHECKS = (orphans,)
