"""Deletes old logs and results that other hosts have delivered to the service of this machine.

The recorder calls it, on the host of the service. Logs are kept for ``keep_logs`` after their last line, results for
``keep_results`` after their arrival. The logs of each user are held to ``user_log_limit`` together, and the results to
``user_results_limit``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Collection

from gpuqueue.errors import GpuQueueError
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system.delivered_layout import COMPLETE, FAILED, PARTIAL, REMOVED, RESULTS, USER
from gpuqueue.system.logs import LOGS, TIMES
from workers.services.run_tree import names_in, opened
from workers.services.user_logs import UserLogs
from workers.services.user_results import hold_results

log = logging.getLogger(__name__)

#: Pause after each run of which something was deleted, in seconds, because the store uses the same disk.
PACE_S = 0.01
#: After this time results that still arrive are what a service has left that was killed, in seconds.
PARTIAL_S = 86400.0
_LOGS = frozenset({*LOGS, *(name + TIMES for name in LOGS)})


class DeliveredPruner:
    """Prunes the deliveries of one service. Several may run at once."""

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
        logs = _LOGS.intersection(names)
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
