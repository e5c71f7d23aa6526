"""Deletes the directories of runs with the code that came with their jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Callable

from workers.services.run_tree import names_in, opened
from workers.shim.code import DIRECTORY, MANIFEST, TREE
from workers.shim.launched import remove_code

log = logging.getLogger(__name__)

#: Pause after each deleted directory, in seconds, because jobs use the same disk.
PACE_S = 0.01


def delete_code(
    runs: os.PathLike[str],
    before_s: float,
    launcher: str | None,
    stopping: threading.Event,
    reported: set[str],
    pending: Callable[[str, str], bool],
) -> int:
    """Delete the code directories of the runs below *runs* that were settled before *before_s* (seconds since 1970).

    The files belong to the submitter if jobs run as their submitters; *launcher* deletes them then. A failure is logged
    once for each run directory: *reported* has those that were logged. *pending* says whether the results of a run, by
    its job and token, are still to be delivered; then they stay. Return how many directories were deleted.
    """
    found = 0
    with contextlib.suppress(FileNotFoundError), opened(runs, None) as top:
        for name in sorted(each for each in names_in(top) if each.isdigit()):
            with contextlib.suppress(OSError), opened(name, top) as job:  # fails for a link or a missing directory
                for token in names_in(job):
                    deleted = False
                    if pending(name, token):
                        continue
                    with contextlib.suppress(OSError), opened(token, job) as run:
                        deleted = _delete_of(run, before_s, launcher, f"{name}/{token}", reported)
                    found += deleted
                    if stopping.wait(PACE_S if deleted else 0):
                        return found
    return found


def _delete_of(run: int, before_s: float, launcher: str | None, name: str, reported: set[str]) -> bool:
    """Delete the code directory of one run. The run directory keeps its time, by which its log is deleted later."""
    about, names = os.fstat(run), names_in(run)
    if DIRECTORY not in names or "claim" in names or about.st_mtime >= before_s:
        return False
    owner = os.stat(DIRECTORY, dir_fd=run, follow_symlinks=False).st_uid
    try:
        if owner != os.geteuid() and launcher is not None:
            remove_code(launcher, name)
        else:
            _empty(run)
        os.rmdir(DIRECTORY, dir_fd=run)
    except OSError as error:
        if name not in reported:
            reported.add(name)
            log.warning("the code of the run %s of uid %d cannot be deleted: %s", name, owner, error.strerror or error)
        return False
    reported.discard(name)
    os.utime(run, ns=(about.st_atime_ns, about.st_mtime_ns))
    return True


def _empty(run: int) -> None:
    """Delete the content of the code directory in the open *run*, as far as this account may."""
    with opened(DIRECTORY, run) as code:
        shutil.rmtree(f"/proc/self/fd/{code}/{TREE}", ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(MANIFEST, dir_fd=code)
