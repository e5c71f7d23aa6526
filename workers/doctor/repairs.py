"""Repairs that are safe to make without asking. Each checks the current state first, and reports what it has done."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpuqueue.errors import Unreachable
from gpuqueue.settings.settings import Settings
from workers.doctor.runs import UnsettledRuns, links, tokens_over
from workers.run.directory import RunDir
from workers.run.links import LIVE


def remove_dangling_links(settings: Settings) -> Iterator[str]:
    """Remove the links below ``runs/live`` whose run directories are gone.

    A new run is not affected, because its directory is created before its link.
    """
    for job_id, token in links(settings.runs_dir):
        link = settings.runs_dir / LIVE / f"{job_id}.{token}"
        if not os.path.lexists(settings.runs_dir / str(job_id) / token):
            link.unlink(missing_ok=True)
            yield f"removed {link}: its run directory is gone"


def tidy_stale_directories(settings: Settings) -> Iterator[str]:
    """Settle the runs that are certainly over and have neither a shim nor a worker. Their logs stay.

    Each run is locked first, and checked again under the lock.
    """
    for run in UnsettledRuns(settings).runs:
        if not (run.is_left and run.is_over):
            continue
        directory = RunDir(run.directory.path)
        fd = directory.try_lock()
        if fd is None:
            continue  # a worker or a shim has locked the run meanwhile
        try:
            if run.token in tokens_over(settings, [(run.job_id, run.token)]):
                directory.settle()
                yield f"tidied up {directory.path}: job {run.job_id} has gone on without this run; its log stays"
        except Unreachable:
            continue  # without an answer the run is not certainly over
        finally:
            os.close(fd)


REPAIRS = (remove_dangling_links, tidy_stale_directories)


def repair(settings: Settings) -> Iterator[str]:
    """Make every repair, and yield a line for each thing done and for each failure."""
    for each in REPAIRS:
        try:
            yield from each(settings)
        except OSError as error:
            yield f"could not {each.__name__.replace('_', ' ')}: {error.strerror}: {error.filename}"
