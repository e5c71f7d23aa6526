"""What is there of the files that a job asked to keep: the packed archive, or the reason why there is none.

It is read from directories that a job may have changed, so no link is followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from gpuqueue.errors import GpuQueueError, Refused
from gpuqueue.model.job import Job
from gpuqueue.model.run import Run
from gpuqueue.model.run_files import KeptFiles, KeptState
from gpuqueue.settings.settings import Settings
from gpuqueue.system.delivered_layout import FAILED, REMOVED, RESULTS
from gpuqueue.system.safe_open import read_small
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.text.units import format_duration

#: The size of an archive without a file, in bytes: the two blocks of its end mark.
EMPTY_BYTES = 1024
#: Longest reason that is read, in bytes.
MOST_REASON_BYTES = 4096
_NOTES = ((REMOVED, KeptState.REMOVED), (FAILED, KeptState.FAILED))


def kept_files(settings: Settings, job: Job, run: Run, directories: Iterable[Path]) -> KeptFiles:
    """Return what is there of the files that *job* keeps of *run*, in one of the *directories*."""
    places = tuple(directories)
    try:
        found = next(filter(None, map(_archive, places)), None)
    except OSError as error:
        return KeptFiles(state=KeptState.UNKNOWN, reason=f"the run directory cannot be read: {error.strerror}")
    if found is not None and found.st_size <= EMPTY_BYTES:
        return KeptFiles(state=KeptState.FAILED, reason="no file matched what the job asked to keep")
    if found is not None:
        since, keep_s = datetime.fromtimestamp(found.st_mtime, timezone.utc), settings.keep_results_s
        expires_at = None if keep_s is None else since + timedelta(seconds=keep_s)
        return KeptFiles(state=KeptState.KEPT, size_bytes=found.st_size, expires_at=expires_at)
    return noted(places) or _without(settings, job, run)


def noted(directories: Iterable[Path]) -> KeptFiles | None:
    """Return why the *directories* have no kept files, if one of them has a note about that."""
    for directory in directories:
        for name, state in _NOTES:
            try:
                text = read_small(directory / name, MOST_REASON_BYTES)
            except (OSError, GpuQueueError):
                continue
            return KeptFiles(state=state, reason=in_one_line(text.decode("utf-8", "replace")).strip())
    return None


def absence(found: KeptFiles, label: str) -> Refused:
    """Return the error that there are no kept files of the job *label*."""
    what = {
        KeptState.NONE: f"job {label} asked to keep no files (submit --keep)",
        KeptState.WAITING: f"the files that job {label} keeps are not there yet: {found.reason}",
        KeptState.FAILED: f"the files that job {label} asked to keep were not kept: {found.reason}",
        KeptState.REMOVED: f"the files that job {label} kept were removed: {found.reason}",
    }
    return Refused(what.get(found.state, f"the kept files of job {label} cannot be had: {found.reason}"))


def _archive(directory: Path) -> os.stat_result | None:
    try:
        about = os.lstat(directory / RESULTS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return about if stat.S_ISREG(about.st_mode) else None


def _without(settings: Settings, job: Job, run: Run) -> KeptFiles:
    """Return what is known about kept files of which nothing was found."""
    keep_s = settings.keep_results_s
    if not job.spec.keep:
        return KeptFiles(state=KeptState.NONE)
    if job.state.is_active and run.attempt == job.attempt:
        return KeptFiles(state=KeptState.WAITING, reason="they are packed after the end of the run")
    if keep_s is not None and run.ended_at and run.ended_at + timedelta(seconds=keep_s) < datetime.now(timezone.utc):
        reason = f"they are kept for {format_duration(keep_s)} after the run (setting keep_results)"
        return KeptFiles(state=KeptState.REMOVED, reason=reason)
    return KeptFiles(state=KeptState.WAITING, reason=f"host {run.host} has not packed or delivered them")
