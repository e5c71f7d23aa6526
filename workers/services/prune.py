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
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock
from gpuqueue.errors import GpuQueueError, HistoryUnreachable
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system.delivered_layout import COMPLETE, FAILED, PARTIAL, REMOVED, RESULTS, USER
from gpuqueue.system.logs import LOGS, TIMES
from workers.run import deliveries
from workers.services.run_tree import names_in, opened
from workers.services.user_limits import UserLogs, hold_results
from workers.shim import acl
from workers.shim.code import DIRECTORY, delete_below
from workers.shim.launched import remove_code

if TYPE_CHECKING:
    from gpuqueue.history.database import HistoryDatabase

log = logging.getLogger(__name__)

#: Time between two rounds, in seconds.
ROUND_S = 3600.0
#: A round is skipped if the wall clock and the monotonic clock differ by more since the last round, in seconds. A clock
#: that is set a year ahead must not delete every log.
JUMP_S = 300.0
#: Pause after each deleted log, code directory or result, and after each delivery of which something was deleted, in
#: seconds. There may be many, and jobs or the store use the same disk.
PACE_S = 0.01
#: The files that the shim makes: the logs, and the files that record their growth over time.
_LOGS = re.compile(rf"({'|'.join(acl.WRITTEN)})({re.escape(TIMES)})?")
#: After this time results that still arrive are what a service has left that was killed, in seconds.
PARTIAL_S = 86400.0
#: What is removed from the history, how long it is kept, and the function that removes some of it.
_Retention = tuple[str, float | None, Callable[[datetime], int]]
_DELIVERED_LOGS = frozenset({*LOGS, *(name + TIMES for name in LOGS)})


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
                found = _delete_logs(runs, now.timestamp() - keep_s, stopping, self._pending)
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
        self._settings, self._queue, self._database = settings, queue, database
        self._clock = _SteadyClock(clock)
        self._delivered = DeliveredPruner(settings, queue)
        self._kept: tuple[_Retention, ...] = (
            ("environments of jobs that ended", settings.keep_environments_s, database.forget_environments),
            ("entries of the audit log that were made", settings.keep_audit_s, database.forget_audit),
        )

    def loop(self, stopping: threading.Event) -> None:
        """Prune until *stopping* is set. The first round only records the clocks, and removes nothing."""
        _repeat(self.round, stopping)

    def round(self, stopping: threading.Event) -> int:
        """Delete what is due; return the number of rows and files.

        If the history is unreachable, the next round tries again. No exception is raised, because the recorder's
        process would not restart the pruner, and one failing step does not affect the others.
        """
        now = self._clock.now_if_steady()
        if now is None:
            return 0
        from workers.services.snapshot_prune import collect_snapshots  # noqa: PLC0415 - the workers need none of it

        steps: list[Callable[[], int]] = [
            lambda: collect_snapshots(self._settings, self._queue, self._database),
            lambda: self._delivered.prune(now.timestamp(), stopping),
            *(partial(self._forget, now, each, stopping) for each in self._kept),
        ]
        found = 0
        for step in steps:
            try:
                found += step()
            except Exception:
                log.exception("what is kept of old jobs cannot be deleted; it is tried again in %.0f s", ROUND_S)
        return found

    def _forget(self, now: datetime, kept: _Retention, stopping: threading.Event) -> int:
        """Remove from the history what is due of *kept*, and return the number of rows."""
        what, keep_s, forget = kept
        if keep_s is None:
            return 0
        gone = _forgotten(partial(forget, now - timedelta(seconds=keep_s)), stopping)
        if gone:
            log.info("%d %s more than %.0f s ago were removed", gone, what, keep_s)
        return gone


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


def _delete_logs(
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
                    if not pending(name, token) and _delete_logs_of(job, token, before_s):
                        found += 1
                        if stopping.wait(PACE_S):
                            return found
                if untouched:
                    os.rmdir(name, dir_fd=top)  # fails unless the directory is empty
    return found


def _delete_logs_of(job: int, token: str, before_s: float) -> bool:
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
                        deleted = _delete_code_of(run, before_s, launcher, f"{name}/{token}", reported)
                    found += deleted
                    if stopping.wait(PACE_S if deleted else 0):
                        return found
    return found


def _delete_code_of(run: int, before_s: float, launcher: str | None, name: str, reported: set[str]) -> bool:
    """Delete the code directory of one run. The run directory keeps its time, by which its log is deleted later."""
    about, names = os.fstat(run), names_in(run)
    if DIRECTORY not in names or "claim" in names or about.st_mtime >= before_s:
        return False
    owner = os.stat(DIRECTORY, dir_fd=run, follow_symlinks=False).st_uid
    try:
        if owner != os.geteuid() and launcher is not None:
            remove_code(launcher, name)
        else:
            with opened(DIRECTORY, run) as code:
                delete_below(code)
        os.rmdir(DIRECTORY, dir_fd=run)
    except OSError as error:
        if name not in reported:
            reported.add(name)
            log.warning("the code of the run %s of uid %d cannot be deleted: %s", name, owner, error.strerror or error)
        return False
    reported.discard(name)
    os.utime(run, ns=(about.st_atime_ns, about.st_mtime_ns))
    return True


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
                        deleted = 0 if pending(name, token) else _delete_results_of(run, before_s)
                    found += deleted
                    if stopping.wait(PACE_S if deleted else 0):
                        return found
    return found


def _delete_results_of(run: int, before_s: float) -> int:
    """Delete the results in the open directory *run*. The directory keeps its time, which is that of the settlement."""
    about, names, found = os.fstat(run), names_in(run), 0
    for name in {RESULTS, FAILED, REMOVED}.intersection(names) if "claim" not in names else ():
        if os.stat(name, dir_fd=run, follow_symlinks=False).st_mtime < before_s:
            os.unlink(name, dir_fd=run)
            found += 1
    if found:
        os.utime(run, ns=(about.st_atime_ns, about.st_mtime_ns))
    return found


class DeliveredPruner:
    """Deletes old logs and results that other hosts have delivered to the service of this machine.

    Logs are kept for ``keep_logs`` after their last line, results for ``keep_results`` after their arrival. The logs of
    each user are held to ``user_log_limit`` together, and the results to ``user_results_limit``. Several pruners may
    run at once.
    """

    def __init__(self, settings: Settings, queue: JobQueue) -> None:
        self._settings, self._queue = settings, queue
        self._user_logs = UserLogs(lambda names: COMPLETE in names)

    def prune(self, now_s: float, stopping: threading.Event) -> int:
        """Delete what is due at *now_s* (seconds since 1970), and return the number of files.

        Each step uses an open directory and follows no link, so nothing outside is deleted.
        """
        found, top_path = 0, self._settings.delivered_dir
        with contextlib.suppress(FileNotFoundError), opened(top_path, None) as top:
            for name in sorted(each for each in names_in(top) if each.isdigit()):
                with contextlib.suppress(OSError), opened(name, top) as job:  # fails for a link or a missing directory
                    for token in names_in(job):
                        deleted = self._prune_run(job, int(name), token, now_s)
                        found += deleted
                        if stopping.wait(PACE_S if deleted else 0):
                            return found
                    if not names_in(job):
                        os.rmdir(name, dir_fd=top)
        if self._settings.user_log_limit_bytes is not None:
            self._user_logs.enforce(top_path, self._settings.user_log_limit_bytes, stopping)
        if self._settings.user_results_limit_bytes is not None:
            limit_bytes = self._settings.user_results_limit_bytes
            found += hold_results(top_path, limit_bytes, self._settings.host, stopping)
        if found:
            log.info("%d files of logs and results that other hosts had delivered were deleted", found)
        return found

    def _prune_run(self, job: int, job_id: int, token: str, now_s: float) -> int:
        """Delete what is due of one run, and its directory if nothing else is left. Return the number of files."""
        found = 0
        with contextlib.suppress(OSError), opened(token, job) as run:
            is_old = os.fstat(run).st_mtime < now_s - PARTIAL_S
            for name in self._due(run, job_id, token, now_s):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=run)
                    found += name not in {COMPLETE, USER}
            if not {*names_in(run)} - {USER, COMPLETE} and (found or is_old):
                for name in names_in(run):
                    os.unlink(name, dir_fd=run)
                os.rmdir(token, dir_fd=job)
        return found

    def _due(self, run: int, job_id: int, token: str, now_s: float) -> list[str]:
        """Return the names in the directory of a run that are due."""
        names, settings, due = names_in(run), self._settings, []
        for name, keep_s in (
            (RESULTS, settings.keep_results_s),
            (FAILED, settings.keep_results_s),
            (REMOVED, settings.keep_results_s),
            (PARTIAL, PARTIAL_S),
        ):
            if keep_s is not None and name in names and _modified_s(run, name) < now_s - keep_s:
                due.append(name)
        logs = _DELIVERED_LOGS.intersection(names)
        if settings.keep_logs_s is not None and logs:
            newest_s = max(_modified_s(run, each) for each in logs)
            if newest_s < now_s - settings.keep_logs_s and not self._goes_on(job_id, token, names):
                due += [*logs, *({COMPLETE} & {*names})]
        return due

    def _goes_on(self, job_id: int, token: str, names: Collection[str]) -> bool:
        """Return whether the run may still write into its log. Without an answer of the store, it may."""
        if COMPLETE in names:
            return False
        try:
            record = self._queue.jobs.record(job_id)
        except GpuQueueError:
            return True
        run = None if record is None else record.last_run
        return record is not None and run is not None and run.token == token and record.job.state.is_active


def _modified_s(folder: int, name: str) -> float:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
