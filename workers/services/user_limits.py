"""Holds the logs and the kept files of each user on this host to ``user_log_limit`` and ``user_results_limit``.

If the logs of a user need more than the limit together, those of ended runs are cut to 1 MiB, the oldest first, until
the rest fits. If the logs of the runs that go on are too large by themselves, :mod:`workers.services.log_watch` cuts
them. Kept files are removed in the same order, and a file in their place says why. The newest ones of each user stay in
any case: a single run is only held to ``results_limit``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gpuqueue.system.delivered_layout import REMOVED, RESULTS
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.text.units import format_bytes
from workers.run.directory import USER
from workers.services.run_tree import BLOCK_BYTES, names_in, opened, runs_in
from workers.shim.acl import WRITTEN
from workers.shim.log import CUT_BYTES, REASONS, LogLimit
from workers.shim.log import USER as USER_LIMIT

log = logging.getLogger(__name__)

_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, order=True)
class _Log:
    """A log of an ended run that can be cut. Logs sort by the time of their last line."""

    modified_ns: int
    disk_bytes: int
    #: Its job, the token of its run, and its file name.
    place: tuple[str, str, str]


@dataclass
class _Logs:
    """The logs of one user: how much disk they need, and which of them can be cut."""

    disk_bytes: int = 0
    ended_bytes: int = 0
    ended: list[_Log] = field(default_factory=list)


class UserLogs:
    """Enforces the limit on one host, and remembers for which users it has nothing to cut."""

    def __init__(self, is_ended: Callable[[Collection[str]], bool] = lambda names: "claim" not in names) -> None:
        """Cut the logs of runs that have ended: *is_ended* decides by the names in the directory of a run."""
        self._is_ended = is_ended
        self._uncut: set[str] = set()

    def enforce(self, runs: os.PathLike[str], limit_bytes: int, stopping: threading.Event) -> dict[str, int]:
        """Cut logs of ended runs below *runs* of each user whose logs need more than *limit_bytes* on the disk.

        Return how many bytes the logs of ended runs of each user need then.
        """
        left = dict[str, int]()
        with contextlib.suppress(FileNotFoundError), opened(runs, None) as top:
            for user, logs in _by_user(top, self._is_ended).items():
                excess, cut_bytes = logs.disk_bytes - limit_bytes, 0
                for each in sorted(logs.ended):
                    if excess <= cut_bytes or stopping.is_set():
                        break
                    cut_bytes += _cut(top, each)
                left[user] = logs.ended_bytes - cut_bytes
                if stopping.is_set() and not cut_bytes:
                    break
                self._report(user, logs.disk_bytes, limit_bytes, cut_bytes)
        return left

    def _report(self, user: str, disk_bytes: int, limit_bytes: int, cut_bytes: int) -> None:
        """Log what was cut. If too much is left and nothing could be cut, log that once while it lasts."""
        if disk_bytes <= limit_bytes or cut_bytes > 0:
            self._uncut.discard(user)
        if disk_bytes <= limit_bytes or user in self._uncut:
            return
        if cut_bytes > 0:
            done = f"the oldest logs of ended runs were cut to {format_bytes(CUT_BYTES)}"
        else:
            self._uncut.add(user)
            done = "no log of an ended run can be cut further"
        sizes = format_bytes(disk_bytes), format_bytes(limit_bytes)
        log.warning("the logs of %s need %s, more than user_log_limit (%s): %s", in_one_line(user), *sizes, done)


def _by_user(top: int, is_ended: Callable[[Collection[str]], bool]) -> dict[str, _Logs]:
    """Return the logs below the open directory *top* of each user."""
    found: dict[str, _Logs] = defaultdict(_Logs)
    for job_id, token, run in runs_in(top):
        names = names_in(run)
        if USER not in names:  # it has no log yet
            continue
        logs = found[os.readlink(USER, dir_fd=run)]
        for name in set(WRITTEN).intersection(names):
            info = os.stat(name, dir_fd=run, follow_symlinks=False)
            disk_bytes = info.st_blocks * BLOCK_BYTES
            logs.disk_bytes += disk_bytes
            logs.ended_bytes += disk_bytes if is_ended(names) else 0
            if is_ended(names) and disk_bytes > CUT_BYTES and stat.S_ISREG(info.st_mode):
                logs.ended.append(_Log(info.st_mtime_ns, disk_bytes, (job_id, token, name)))
    return found


def _cut(top: int, each: _Log) -> int:
    """Cut the middle of a log, keep its time, and return how many bytes became free on the disk."""
    job_id, token, name = each.place
    with contextlib.suppress(OSError), opened(job_id, top) as job, opened(token, job) as run:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=run)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                limit = LogLimit(f"/proc/self/fd/{fd}", CUT_BYTES, REASONS[USER_LIMIT])
                limit.check()
                limit.close()
                os.utime(fd, ns=(each.modified_ns, each.modified_ns))  # its age counts from its last line
            return each.disk_bytes - os.fstat(fd).st_blocks * BLOCK_BYTES
        finally:
            os.close(fd)
    return 0


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
        for user, files in _kept_by_user(top).items():
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


def _kept_by_user(top: int) -> dict[str, list[_Kept]]:
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
