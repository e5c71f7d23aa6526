"""Deletes what is kept of jobs that ended long ago, once an hour and at a limited rate.

One worker per host at a time prunes logs, then holds them to the limit of each user, and then does the same with the
packed results and the copies of code of ended runs. The recorder, which has the history database, deletes environments
and audit entries there, code snapshots, and the logs and results that other hosts have delivered to the service.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system.delivered_layout import RESULTS
from gpuqueue.system.logs import TIMES
from workers.run import deliveries
from workers.run.directory import USER
from workers.services.code_prune import delete_code
from workers.services.delivered_prune import DeliveredPruner
from workers.services.results_prune import delete_results
from workers.services.run_tree import names_in, opened
from workers.services.user_logs import UserLogs
from workers.services.user_results import hold_results
from workers.shim import acl

if TYPE_CHECKING:
    from gpuqueue.history.database import HistoryDatabase

log = logging.getLogger(__name__)

#: Time between two rounds, in seconds.
ROUND_S = 3600.0
#: A round is skipped if the wall clock and the monotonic clock differ by more since the last round, in seconds. A clock
#: that is set a year ahead must not delete every log.
JUMP_S = 300.0
#: Pause after each deleted log, in seconds, because there may be many logs, and jobs use the same disk.
PACE_S = 0.01

#: The files that the shim makes: the logs, and the files that record their growth over time.
_LOGS = re.compile(rf"({'|'.join(acl.WRITTEN)})({re.escape(TIMES)})?")


class Pruner:
    """Prunes the run directories of one host. Each worker has a pruner, and a lock admits one at a time."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = _SteadyClock(clock)
        self._user_logs = UserLogs()
        self._pending = partial(deliveries.is_pending, settings)
        #: The run directories whose code could not be deleted, which was logged.
        self._undeleted: set[str] = set()

    def loop(self, stopping: threading.Event) -> None:
        """Prune until *stopping* is set. The first round only records the clocks, and deletes nothing."""
        _repeat(self.round, stopping)

    def round(self, stopping: threading.Event) -> int:
        """Delete the logs, code copies and results that are due, and hold logs and results to the limits of each user.

        Return the number of deleted logs.
        """
        keep_s, limit_bytes, runs = (
            self._settings.keep_logs_s,
            self._settings.user_log_limit_bytes,
            self._settings.runs_dir,
        )
        now, found = self._clock.now_if_steady(), 0
        with self._alone() as alone:
            if alone and now is not None and keep_s is not None:
                found = _delete(runs, now.timestamp() - keep_s, stopping, self._pending)
            if alone and limit_bytes is not None:
                self._user_logs.enforce(runs, limit_bytes, stopping)
            # The submitter may still write into the copy of the code, so it never outlives the log.
            ages = [age_s for age_s in (self._settings.keep_code_s, keep_s) if age_s is not None]
            if alone and now is not None and ages:
                before_s = now.timestamp() - min(ages)
                launcher = self._settings.launcher_in_use
                delete_code(runs, before_s, launcher, stopping, self._undeleted, self._pending)
            if alone:
                self._prune_results(now, stopping)
        if found:
            log.info("%d logs of runs that ended more than %.0f s ago were deleted", found, keep_s)
        return found

    def _prune_results(self, now: datetime | None, stopping: threading.Event) -> None:
        """Delete the results that are due, and hold the others to the limit of each user."""
        runs, keep_s = self._settings.runs_dir, self._settings.keep_results_s
        limit_bytes, host = self._settings.user_results_limit_bytes, self._settings.host
        if now is not None and keep_s is not None:
            delete_results(runs, now.timestamp() - keep_s, stopping, self._pending)
        if limit_bytes is not None:
            hold_results(runs, limit_bytes, host, stopping, self._pending)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        fd = os.open(self._settings.state_dir / "prune.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(fd)


class HistoryPruner:
    """Deletes old environments and audit entries from the history, unused code snapshots, and old deliveries.

    Several pruners may run at once.
    """

    def __init__(self, settings: Settings, clock: Clock, database: HistoryDatabase, queue: JobQueue) -> None:
        self._settings, self._queue = settings, queue
        self._clock = _SteadyClock(clock)
        self._delivered = DeliveredPruner(settings, queue)
        #: What is removed, how long it is kept, and the function that removes some of it.
        self._kept: tuple[tuple[str, float | None, Callable[[datetime], int]], ...] = (
            ("environments of jobs that ended", settings.keep_environments_s, database.forget_environments),
            ("entries of the audit log that were made", settings.keep_audit_s, database.forget_audit),
        )

    def loop(self, stopping: threading.Event) -> None:
        """Prune until *stopping* is set. The first round only records the clocks, and removes nothing."""
        _repeat(self.round, stopping)

    def round(self, stopping: threading.Event) -> int:
        """Delete what is due; return the number of rows and files.

        If the history is unreachable, the next round tries again.
        """
        now, found = self._clock.now_if_steady(), 0
        if now is not None:
            from workers.services.snapshot_prune import collect_snapshots  # noqa: PLC0415 - the workers need none of it

            found += collect_snapshots(self._settings, self._queue)
            found += self._delivered.prune(now.timestamp(), stopping)
        for what, keep_s, forget in self._kept:
            if now is not None and keep_s is not None:
                gone = _forgotten(partial(forget, now - timedelta(seconds=keep_s)), stopping)
                if gone:
                    log.info("%d %s more than %.0f s ago were removed", gone, what, keep_s)
                found += gone
        return found


def _forgotten(forget: Callable[[], int], stopping: threading.Event) -> int:
    """Call *forget* until nothing is left, and return the sum."""
    found = 0
    with contextlib.suppress(HistoryUnreachable):
        while gone := forget():
            found += gone
            if stopping.wait(PACE_S):
                break
    return found


def _repeat(prune: Callable[[threading.Event], int], stopping: threading.Event) -> None:
    prune(stopping)
    while not stopping.wait(ROUND_S):
        prune(stopping)


class _SteadyClock:
    """Returns the time only if both clocks, the wall clock and the monotonic, advanced equally since the last call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: tuple[datetime, float] | None = None

    def now_if_steady(self) -> datetime | None:
        """Return the time, or None for the first call and after a jump of the wall clock."""
        now, before = self._clock.now(), self._last
        self._last = now, self._clock.monotonic_s()
        if before is None:
            return None
        steps = (now - before[0]).total_seconds(), self._last[1] - before[1]
        return now if abs(steps[0] - steps[1]) < JUMP_S else None


def _delete(
    runs: os.PathLike[str], before_s: float, stopping: threading.Event, pending: Callable[[str, str], bool]
) -> int:
    """Delete the logs below *runs* that were not modified since *before_s* (seconds since 1970), and return the number.

    *pending* says whether something of a run, by its job and token, is still to be delivered; then its logs stay. Each
    step uses an open directory and follows no link, so nothing outside *runs* is deleted.
    """
    found = 0
    with contextlib.suppress(FileNotFoundError), opened(runs, None) as top:
        for name in sorted(each for each in names_in(top) if each.isdigit()):
            with contextlib.suppress(OSError), opened(name, top) as job:  # fails for a link or a missing directory
                untouched = os.fstat(job).st_mtime < before_s
                for token in names_in(job):
                    if not pending(name, token) and _delete_one(job, token, before_s):
                        found += 1
                        if stopping.wait(PACE_S):
                            return found
                if untouched:
                    os.rmdir(name, dir_fd=top)  # fails unless the directory is empty
    return found


def _delete_one(job: int, token: str, before_s: float) -> bool:
    """Delete the logs of one run, and its directory if it is then empty. Return whether there was a log."""
    gone = False
    with contextlib.suppress(OSError), opened(token, job) as run:
        names, about = names_in(run), os.fstat(run)
        if "claim" in names or about.st_mtime >= before_s:  # unsettled, or settled recently
            return False
        if "log" in names and os.stat("log", dir_fd=run, follow_symlinks=False).st_mtime < before_s:
            removed = [acl.remove(name, run) for name in filter(_LOGS.fullmatch, names)]
            gone = all(removed)
        left = set(names_in(run))
        if USER in left and left.isdisjoint({RESULTS, *acl.WRITTEN}):  # these have a user, too
            os.unlink(USER, dir_fd=run)
        os.utime(run, ns=(about.st_atime_ns, about.st_mtime_ns))  # what stays is still due
        os.rmdir(token, dir_fd=job)
    return gone
