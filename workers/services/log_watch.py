"""Holds the logs of running jobs to what the host can store: to ``user_log_limit``, and to little on a full disk.

A job writes straight into its log, and its shim cuts the middle out of a log that exceeds its limit. So this watch only
lowers limits: it puts the new one into the run directory (:meth:`workers.run.directory.RunDir.limit_log`) and wakes the
shim. A lower limit holds for the rest of the run.

The logs of ended runs are cut first (:mod:`workers.services.user_limits`). Only if those of the runs that go on are too
large by themselves, this watch lowers their limits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuqueue.settings.settings import Settings
from gpuqueue.system.disk_room import Room
from gpuqueue.text.sanitize import in_one_line
from gpuqueue.text.units import GIB, format_bytes
from workers.run import links
from workers.run.directory import USER, RunDir
from workers.run.files import lock
from workers.services.run_tree import BLOCK_BYTES
from workers.services.user_limits import UserLogs
from workers.shim.acl import WRITTEN, is_held
from workers.shim.log import CUT_BYTES, DISK, REASONS, LogLimit
from workers.shim.log import USER as USER_LIMIT

log = logging.getLogger(__name__)

#: Most free room below which a disk is nearly full, in bytes. On a small disk it is 5 % (:data:`LEAST_FREE`).
MOST_FREE_BYTES = GIB
#: Time between two looks at the free room of the disk, and at the logs of each user, in seconds.
WATCH_S, USERS_S = 0.2, 2.0
#: Time between two searches of the logs of all ended runs, in seconds: while no user has too much, and while one has.
#: Between them only the running jobs are watched.
SEARCH_S, SOON_S = 3600.0, 60.0
#: How long a shim may take to cut its log, in seconds. After that the next log is cut as well.
CUT_S = 5.0
#: Share of a limit to which the logs are cut, so that the next line of a job does not exceed it again.
CUT_SHARE = 0.9


@dataclass(slots=True)
class RunLogs:
    """The logs of one run: its user, and the bytes on the disk of each file."""

    directory: RunDir
    user: str
    sizes: tuple[int, ...]
    #: The limit that was lowered before, or None.
    limit_bytes: int | None

    @property
    def job_id(self) -> str:
        """Return the id of the job."""
        return self.directory.path.parent.name

    @property
    def disk_bytes(self) -> int:
        """Return what all files occupy on the disk."""
        return sum(self.sizes)

    def excess(self, limit_bytes: int) -> int:
        """Return how many bytes become free if each file is held to *limit_bytes*."""
        return sum(max(0, size - limit_bytes) for size in self.sizes)


class LogWatch:
    """Watches the disk of the runs and the logs of each user. One for each host."""

    def __init__(self, settings: Settings) -> None:
        self._runs = settings.runs_dir
        self._prune_lock = str(settings.state_dir / "prune.lock")
        self._user_limit_bytes = settings.user_log_limit_bytes
        self._user_logs = UserLogs()
        #: The bytes of the logs of ended runs by user, when they were last added up, and the running ones then.
        self._ended: defaultdict[str, int] = defaultdict(int)
        self._searched_s: float | None = None
        self._running: dict[Path, RunLogs] = {}
        self._users_s = 0.0
        #: The logs that are still open for writing after the end of their run, and their bytes on the disk then.
        self._held: dict[Path, int] = {}
        #: When the limit of a run was lowered, for the runs whose shims may still be about to cut.
        self._lowered_s: dict[Path, float] = {}
        self._is_low = False

    def loop(self, stopping: threading.Event) -> None:
        """Watch until *stopping* is set."""
        while not stopping.wait(WATCH_S):
            try:
                self.check(stopping)
            except OSError as error:
                log.warning("the logs of the jobs cannot be watched: %s", error)
                stopping.wait(USERS_S)

    def check(self, stopping: threading.Event) -> None:
        """Look once, and lower limits where that is necessary.

        Raises:
            OSError: the disk of the runs cannot be read.

        """
        now = time.monotonic()
        try:
            room = Room.of(self._runs)
        except FileNotFoundError:
            return  # no job has run here
        least_bytes = room.least_bytes(MOST_FREE_BYTES)
        is_low = room.free_bytes < least_bytes
        is_due = self._user_limit_bytes is not None and now - self._users_s >= USERS_S
        if is_low or is_due:
            found = self._running_logs()
            if is_low:
                self._relieve(found.values(), room, 2 * least_bytes, now)
            if is_due and self._user_limit_bytes is not None:
                self._users_s = now
                self._hold_users(found, self._user_limit_bytes, stopping, now)
        if self._is_low and not is_low:
            log.warning("the disk of %s has room again: %s free", self._runs, format_bytes(room.free_bytes))
        self._is_low = is_low

    def _running_logs(self) -> dict[Path, RunLogs]:
        """Return the logs of each unsettled run by its directory."""
        found = {}
        for job_id, token in links.names(self._runs, links.LIVE):
            directory = RunDir(self._runs / job_id / token)
            with contextlib.suppress(OSError):  # it ends now, or has no log yet
                user = str((directory.path / USER).readlink())
                sizes = tuple(map(_on_disk, (directory.path / name for name in WRITTEN)))
                limit = directory.log_limit()
                found[directory.path] = RunLogs(directory, user, sizes, None if limit is None else limit[0])
        return found

    # ---- a disk that is nearly full ------------------------------------------------------------------------------

    def _relieve(self, found: Iterable[RunLogs], room: Room, wanted_bytes: int, now: float) -> None:
        """Cut the largest logs until *wanted_bytes* are free, or all are cut. Report it once if there is nothing."""
        logs = sorted(found, key=lambda each: each.disk_bytes, reverse=True)
        self._lowered_s = {path: at for path, at in self._lowered_s.items() if now - at < CUT_S}
        free_bytes = room.free_bytes + sum(
            each.excess(each.limit_bytes or 0) for each in logs if each.directory.path in self._lowered_s
        )
        free = f"the disk of {self._runs} has only {format_bytes(room.free_bytes)} free"
        for each in logs:
            if free_bytes >= wanted_bytes:
                return
            is_cut = each.limit_bytes is not None and each.limit_bytes <= CUT_BYTES
            if is_cut or not each.excess(CUT_BYTES):
                continue
            if self._lower(each, CUT_BYTES, DISK, now):
                free_bytes += each.excess(CUT_BYTES)
                log.warning(
                    "%s: the log of job %s of %s (%s) is cut to %s for the rest of its run",
                    free,
                    each.job_id,
                    in_one_line(each.user),
                    format_bytes(each.disk_bytes),
                    format_bytes(CUT_BYTES),
                )
        if not self._is_low:
            log.warning("%s: make room, because no log of a running job can be cut any further", free)

    # ---- the limit of each user ----------------------------------------------------------------------------------

    def _hold_users(self, found: dict[Path, RunLogs], limit_bytes: int, stopping: threading.Event, now: float) -> None:
        """Cut the logs of each user who has more than *limit_bytes*: first those of ended runs, then the largest."""
        for path, before in self._running.items():
            if path not in found:  # it has ended; its log stays
                self._ended[before.user] += before.disk_bytes
                self._held.update(zip((path / name for name in WRITTEN), before.sizes, strict=True))
        self._hold_held()
        self._running = found
        by_user: defaultdict[str, list[RunLogs]] = defaultdict(list)
        for each in found.values():
            by_user[each.user].append(each)
        due_s = SOON_S if self._is_over(by_user, limit_bytes) else SEARCH_S
        if self._searched_s is None or now - self._searched_s > due_s:
            self._search(limit_bytes, stopping, now)
        for user, logs in by_user.items():
            room_bytes = limit_bytes - self._ended[user]
            sizes = [size for each in logs for size in each.sizes]
            if sum(sizes) <= room_bytes:
                continue
            most_bytes = max(CUT_BYTES, level(sizes, int(CUT_SHARE * room_bytes)))
            for each in logs:
                is_lower = each.limit_bytes is None or most_bytes < each.limit_bytes
                if is_lower and each.excess(most_bytes) and self._lower(each, most_bytes, USER_LIMIT, now):
                    log.warning(
                        "the logs of %s need %s, more than user_log_limit (%s): that of job %s is held to %s",
                        in_one_line(user),
                        format_bytes(sum(sizes) + self._ended[user]),
                        format_bytes(limit_bytes),
                        each.job_id,
                        format_bytes(most_bytes),
                    )

    def _hold_held(self) -> None:
        """Let no log grow that a process of the user has open for writing after the end of its run."""
        self._held = {path: size for path, size in self._held.items() if is_held(path)}
        for path, size in self._held.items():
            limit = LogLimit(str(path), max(size, CUT_BYTES), REASONS[USER_LIMIT])
            limit.check()
            limit.close()

    def _is_over(self, by_user: dict[str, list[RunLogs]], limit_bytes: int) -> bool:
        """Return whether a user whose jobs run has more than the limit, and logs of ended runs that may be cut."""
        return any(
            self._ended[user] > 0 and sum(each.disk_bytes for each in logs) + self._ended[user] > limit_bytes
            for user, logs in by_user.items()
        )

    def _search(self, limit_bytes: int, stopping: threading.Event, now: float) -> None:
        """Cut the logs of ended runs of each user who has too much, and add up the rest, unless a worker does so."""
        fd = lock(self._prune_lock)
        if fd is None:
            return
        try:
            self._ended = defaultdict(int, self._user_logs.enforce(self._runs, limit_bytes, stopping))
            self._searched_s = now
        finally:
            os.close(fd)

    def _lower(self, each: RunLogs, limit_bytes: int, reason: str, now: float) -> bool:
        """Lower the limit of a run's logs; return whether that was possible."""
        try:
            each.directory.limit_log(limit_bytes, reason)
        except OSError as error:
            log.warning("the log of job %s cannot be cut: %s", each.job_id, error)
            return False
        each.limit_bytes = limit_bytes
        self._lowered_s[each.directory.path] = now
        return True


def _on_disk(path: Path) -> int:
    """Return how many bytes a log occupies on the disk; 0 if there is none, or something else in its place."""
    try:
        about = path.lstat()
    except FileNotFoundError:
        return 0
    return about.st_blocks * BLOCK_BYTES if stat.S_ISREG(about.st_mode) else 0


def level(sizes: Iterable[int], room_bytes: int) -> int:
    """Return the largest limit for each of *sizes* with which all together need at most *room_bytes*."""
    ordered = sorted(sizes)
    for number, size in enumerate(ordered):
        share = max(0, room_bytes) // (len(ordered) - number)
        if size > share:
            return share
        room_bytes -= size
    return ordered[-1] if ordered else 0
