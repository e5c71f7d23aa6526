"""Holds the kept files of each user on this host to ``user_results_limit``, together.

If they need more than the limit, the oldest are removed first, until the rest fits. The newest ones of each user stay
in any case: a single run is only held to ``results_limit``. A file in their place says why they were removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from gpuqueue.system.delivered_layout import REMOVED, RESULTS
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.text.units import format_bytes
from workers.run.directory import USER
from workers.services.run_tree import BLOCK_BYTES, names_in, opened, runs_in

log = logging.getLogger(__name__)

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, order=True)
class _Kept:
    """The kept files of a run. They sort by the time when they were packed, or delivered."""

    modified_ns: int
    disk_bytes: int
    #: Its job, and the token of its run.
    job_id: str
    token: str


def hold_results(
    runs: os.PathLike[str],
    limit_bytes: int,
    host: str,
    stopping: threading.Event,
    pending: Callable[[str, str], bool] = lambda _job, _token: False,
) -> int:
    """Remove kept files below *runs* of each user whose kept files need more than *limit_bytes* on the disk.

    Those that are *pending* by their job and token are still to be delivered: they count, and stay. *host* is the name
    of this host in messages. Return how many files were removed.
    """
    found = 0
    with contextlib.suppress(FileNotFoundError), opened(runs, None) as top:
        for user, files in _by_user(top).items():
            disk_bytes = sum(each.disk_bytes for each in files)
            sizes = f"{format_bytes(disk_bytes)}, more than {format_bytes(limit_bytes)}"
            reason = f"all kept files of {in_one_line(user)} on host {host} needed {sizes} (setting user_results_limit)"
            for each in sorted(files)[:-1]:
                if disk_bytes <= limit_bytes or stopping.is_set():
                    break
                if not pending(each.job_id, each.token) and _remove(top, each, reason):
                    disk_bytes -= each.disk_bytes
                    found += 1
                    log.warning("the kept files of run %s.%s were removed: %s", each.job_id, each.token, reason)
    return found


def _by_user(top: int) -> dict[str, list[_Kept]]:
    """Return the kept files below the open directory *top* of each user."""
    found: dict[str, list[_Kept]] = defaultdict(list)
    for job_id, token, run in runs_in(top):
        names = names_in(run)
        if RESULTS in names and USER in names and "claim" not in names:
            about = os.stat(RESULTS, dir_fd=run, follow_symlinks=False)
            if stat.S_ISREG(about.st_mode):
                user = os.readlink(USER, dir_fd=run)
                found[user].append(_Kept(about.st_mtime_ns, about.st_blocks * BLOCK_BYTES, job_id, token))
    return found


def _remove(top: int, each: _Kept, reason: str) -> bool:
    """Remove the kept files of a run, and write down the *reason* before. The directory keeps its time."""
    with contextlib.suppress(OSError), opened(each.job_id, top) as job, opened(each.token, job) as run:
        about = os.fstat(run)
        fd = os.open(REMOVED, _NEW, 0o600, dir_fd=run)
        with os.fdopen(fd, "wb") as file:
            file.write(reason.encode(errors="replace"))
        os.unlink(RESULTS, dir_fd=run)
        os.utime(run, ns=(about.st_atime_ns, about.st_mtime_ns))
        return True
    return False
