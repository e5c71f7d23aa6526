"""Deletes the results that were packed after runs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from gpuqueue.system.delivered_layout import FAILED, REMOVED, RESULTS
from workers.services.run_tree import names_in, opened

#: Pause after each deleted file, in seconds, because jobs use the same disk.
PACE_S = 0.01


def delete_results(
    runs: os.PathLike[str], before_s: float, stopping: threading.Event, pending: Callable[[str, str], bool]
) -> int:
    """Delete the packed results of the runs below *runs* that were written before *before_s* (seconds since 1970).

    *pending* says whether those of a run, by its job and token, are still to be delivered; then they stay. Return how
    many files were deleted.
    """
    found = 0
    with contextlib.suppress(FileNotFoundError), opened(runs, None) as top:
        for name in sorted(each for each in names_in(top) if each.isdigit()):
            with contextlib.suppress(OSError), opened(name, top) as job:  # fails for a link or a missing directory
                for token in names_in(job):
                    deleted = 0
                    with contextlib.suppress(OSError), opened(token, job) as run:
                        deleted = 0 if pending(name, token) else _delete_in(run, before_s)
                    found += deleted
                    if stopping.wait(PACE_S if deleted else 0):
                        return found
    return found


def _delete_in(run: int, before_s: float) -> int:
    """Delete the results in the open directory *run*. The directory keeps its time, which is that of the settlement."""
    about, names, found = os.fstat(run), names_in(run), 0
    for name in {RESULTS, FAILED, REMOVED}.intersection(names) if "claim" not in names else ():
        if os.stat(name, dir_fd=run, follow_symlinks=False).st_mtime < before_s:
            os.unlink(name, dir_fd=run)
            found += 1
    if found:
        os.utime(run, ns=(about.st_atime_ns, about.st_mtime_ns))
    return found
