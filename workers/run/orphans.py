"""Lists and ends the live runs of this machine without a store or a worker."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from pathlib import Path

from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.run import EndingKind
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import boot_id, is_locked_anywhere
from workers.run import process_tree
from workers.run.directory import RunDir, reported, unsettled
from workers.run.environment import TOKEN
from workers.shim import launched

#: How long the kernel may need to end processes after SIGKILL, in seconds.
KILL_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class KilledRun:
    """A run that was killed with its shim: its last sign of life, in ms since 1970, and if that was in this boot."""

    seen_ms: int
    in_this_boot: bool


def left(settings: Settings) -> dict[int, RunDir]:
    """Return the runs whose shim is alive, by job id."""
    found = {}
    for directory in unsettled(settings.runs_dir):
        held, shim = directory.held(), directory.shim()
        # The shim holds the lock. That of a run whose directory was copied holds the lock of the original.
        if held is not None and shim is not None and shim.alive() and is_locked_anywhere(directory.lock):
            found[held.job_id] = directory
    return found


def end_run(directory: RunDir, within_s: float, stopping: threading.Event) -> bool:
    """End a run that must not go on, and return whether its shim is gone, *within_s* seconds or once *stopping* is set.

    A job must never run twice at the same time, so the caller may let it run again only if the shim is gone.
    """
    with contextlib.suppress(OSError):
        directory.ask_end(EndingKind.LOST)
    deadline_s = time.monotonic() + within_s
    while (lock_fd := directory.try_lock()) is None:
        if time.monotonic() > deadline_s or stopping.wait(0.1):
            return False
    os.close(lock_fd)
    return True


def earlier_runs(runs: Path, job_id: int, token: str) -> list[RunDir]:
    """Return the runs of a job before the one with *token* that have a shim on this host, or are about to get one.

    A token begins with the number of the attempt. A stale claim has a lower number than a newer run, and gets none.
    """
    attempt = _attempt_of(token)
    if attempt <= 1:
        return []  # the usual case, without a search
    directories = [RunDir(path) for path in (runs / str(job_id)).iterdir() if 0 < _attempt_of(path.name) < attempt]
    return [each for each in directories if each.claimed and not each.has_exit() and is_locked_anywhere(each.lock)]


def _attempt_of(token: str) -> int:
    """Return the number of the attempt in *token*, 0 if it is no token."""
    number = token.partition(".")[0]
    return int(number) if re.fullmatch("[0-9]{1,9}", number, re.ASCII) else 0


def killed(settings: Settings) -> list[KilledRun]:
    """Return the runs of this machine that were killed with their shim: it is gone, and has written no exit.

    A run that lives is none of these, nor one whose end is only to be reported.
    """
    return [
        KilledRun(seen_ms=directory.seen_ms(), in_this_boot=shim.boot == boot_id())
        for directory in unsettled(settings.runs_dir)
        if (shim := directory.shim()) is not None and not shim.alive() and not directory.has_exit()
    ]


def sweep_run(token: str, launcher: str | None) -> int:
    """Kill every process of the run *token*, and return how many there were.

    With a *launcher* the processes may belong to the submitter, so that only the launcher can find and kill them.

    Raises:
        OSError: Processes may be left: they cannot be read now, or the launcher does not answer.

    """
    swept = process_tree.sweep(TOKEN, token)
    return swept + (launched.sweep(launcher, token) if launcher is not None else 0)


def forget(settings: Settings) -> None:
    """Settle all runs of a copied state directory, and end no process: they are those of the original."""
    for directory in (*unsettled(settings.runs_dir), *reported(settings.runs_dir)):
        directory.settle()


def end(settings: Settings) -> None:
    """End the runs whose shim is alive, and wait until the last of their processes is gone.

    The next worker of each device reports them to the queue as cancelled.

    Raises:
        GpuQueueError: A run does not end.

    """
    runs = left(settings)
    for directory in runs.values():
        directory.ask_end(EndingKind.CANCELLED)
    for job_id, directory in runs.items():
        shim = directory.shim()
        if shim is not None and not shim.wait(settings.kill_grace_s + KILL_S):
            raise GpuQueueError(f"the processes of job {job_id} do not end (shim {shim.pid})")
