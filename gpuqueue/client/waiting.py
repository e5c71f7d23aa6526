"""Waits for the end of a job, and follows its log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client.awaiting import POLL_S, Awaiting, HeldMessage
from gpuqueue.client.patience import ABSENCES, Patience
from gpuqueue.errors import HistoryUnreachable, Refused, Unreachable
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job
from gpuqueue.system.logs import LogTail
from gpuqueue.text.units import format_duration

if TYPE_CHECKING:
    from gpuqueue.model import run as runs
    from gpuqueue.model.run import Record, Run
else:
    runs = later("gpuqueue.model.run")

#: How long to wait for an ended job's record in the history, in seconds. After that, it is returned without its runs.
RECORD_S = 5.0
#: Interval between two polls of a followed log, in seconds.
FOLLOW_S = 0.1


class Waiting(Awaiting):
    """Waits for jobs and follows their logs."""

    def wait(
        self,
        job: int | str,
        *,
        timeout_s: float | None = None,
        held: Callable[[Job], None] | None = None,
        away: Callable[[Unreachable], None] | None = None,
    ) -> Record:
        """Wait until the job, the array or the member has ended, and return it with its runs.

        The other arguments are those of :meth:`ends`, which waits for several jobs.

        Raises:
            JobNotFound: the job does not exist.
            WaitTimeout: the job has not ended after *timeout_s*. It continues.

        """
        _, ended = next(self.ends([job], timeout_s=timeout_s, held=held, away=away))
        return self.recorded(ended)

    def watch(self, job: int | str, *, away: Callable[[Unreachable], None] | None = None) -> Iterator[Job]:
        """Yield the job's current state at least once a second until it has ended.

        *away* is that of :meth:`ends`.

        Raises:
            JobNotFound: the job does not exist.

        """
        patience = Patience(away)
        while True:
            try:
                for seen in self._watched(job):
                    patience.answered()
                    yield seen
            except ABSENCES as error:
                patience.bear(error)
            else:
                return

    def _watched(self, job_id: int | str) -> Iterator[Job]:
        from gpuqueue.queue import keys  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.queue.connect import connect_at_once  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.queue.wakeup import Doorbell  # noqa: PLC0415 - lazy import for startup time

        with Doorbell(self.settings.redis_url, keys.END, by=connect_at_once) as wakeups:
            while True:
                job = self.get(job_id)
                yield job
                if job.state.is_end:
                    return
                until = time.monotonic() + POLL_S
                while (left_s := until - time.monotonic()) > 0:
                    wake = wakeups.wait(left_s)
                    if wake is not None and wake.job_id == job.id:
                        break

    def recorded(self, job: Job) -> Record:
        """Return the ended *job* from the history, or without its runs if the history does not have it in time."""
        if job.member is not None and not job.attempt:
            return runs.Record(job=job)  # never claimed: the history has only its array
        deadline = time.monotonic() + RECORD_S
        while time.monotonic() < deadline:
            try:
                record = self._written(job.id)
            except HistoryUnreachable:
                break
            if record is not None and record.job.state.is_end:
                return record
            time.sleep(0.01)
        return runs.Record(job=job)

    def log_path(self, job: int | str) -> Path:
        """Return the path of the newest run's log, which must be on this machine.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job is an array or has not run yet, or its log is on another host or deleted.

        """
        return self.log_there(self.newest(job))

    def log_there(self, record: Record) -> Path:
        """Return the path of the log of the newest run in *record*, which must be on this machine.

        Raises:
            Refused: as for :meth:`log_path`.

        """
        path, label = self._log_path_of(record), record.job.label
        if path is None:
            raise Refused(f"job {label} ({record.job.state}) has no log yet: it has not run")
        if record.job.state.is_end and _is_gone(path):
            keep_s = self.settings.keep_logs_s
            kept = f"; logs are kept for {format_duration(keep_s)} (GPUQUEUE_KEEP_LOGS)" if keep_s is not None else ""
            raise Refused(f"the log of job {label} is not there any more: {path}{kept}")
        return path

    def log_of(self, record: Record) -> Path | None:
        """Return the path of the log of the newest run in *record*, or None if there is none on this machine."""
        run = next((run for run in reversed(record.runs) if run.log_path), None)
        return Path(run.log_path) if run and run.log_path and run.host == self.settings.host else None

    def _log_path_of(self, record: Record) -> Path | None:
        if record.job.spec.array is not None:
            one = f"{record.job.id}_{next(iter(record.job.spec.array.indexes))}"
            raise Refused(f"array {record.job.id} has no log of its own: name a member, such as {one}")
        run = next((run for run in reversed(record.runs) if run.log_path), None)
        return None if run is None else self._lies_here(run)

    def _lies_here(self, run: Run) -> Path:
        if run.host != self.settings.host:
            raise Refused(f"the log of job {run.job_id} lies on host {run.host}: {run.log_path}")
        return Path(run.log_path or "")

    def follow(
        self,
        job: int | str,
        tail: LogTail | None = None,
        *,
        held: Callable[[Job], None] | None = None,
        seen: Callable[[Job], None] | None = None,
        again: Callable[[Run], None] | None = None,
        away: Callable[[Unreachable], None] | None = None,
        whole: bool = False,
    ) -> Iterator[bytes]:
        """Yield the job's output while it is written, from its newest run through all later runs to the job's end.

        Args:
            job: A job, or a member of an array.
            tail: The tail of an earlier call, to continue where that call stopped.
            held: Called with the job each time it becomes held.
            seen: Called several times a second with the last known state of the job.
            again: Called with each later run before the output of that run.
            away: See :meth:`ends`. Output is yielded during an absence of the store too.
            whole: Start with the job's first run instead of its newest.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job is an array, its log is on another host, or it ended without a run.

        """
        tail, patience, look = tail or LogTail(), Patience(away), seen or _ignored

        def there(seen_so: Job) -> None:
            patience.answered()
            look(seen_so)

        notification = HeldMessage(held)
        while True:
            try:
                yield from self._followed(job, tail, notification, there, again, whole=whole)
            except ABSENCES as error:
                patience.bear(error)
                yield from tail.rest()
            else:
                return

    def _followed(
        self,
        job_id: int | str,
        tail: LogTail,
        notification: HeldMessage,
        seen: Callable[[Job], None],
        again: Callable[[Run], None] | None,
        *,
        whole: bool,
    ) -> Iterator[bytes]:
        """Implement :meth:`follow` while the store is reachable. A later call continues at *tail*."""
        from gpuqueue.queue import keys  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.queue.connect import connect_at_once  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.queue.wakeup import Doorbell  # noqa: PLC0415 - lazy import for startup time

        with Doorbell(self.settings.redis_url, keys.END, by=connect_at_once) as wakeups:
            while True:
                job = self.get(job_id)
                ended = job.state.is_end  # read before the log, so that no output written before the end is missed
                if ended:
                    self.recorded(job)  # wait briefly for the history, which has the log's path
                notification.look(job)
                seen(job)
                if job.spec.array is not None:
                    self._log_path_of(runs.Record(job=job))  # raises: an array has no log
                if job.attempt:  # without an attempt there is no log, and the history need not be queried
                    yield from self._turned(self._runs_to_read(job_id, tail, whole=whole), tail, again, whole=whole)
                yield from tail.rest()
                if ended:
                    self.log_path(job_id)  # raises if there is no log
                    return
                until = time.monotonic() + (FOLLOW_S if tail.path is None else POLL_S)
                while time.monotonic() < until:
                    wake = wakeups.wait(FOLLOW_S)
                    yield from tail.rest()
                    seen(job)
                    if wake is not None and wake.job_id == job.id:
                        break

    def _runs_to_read(self, job_id: int | str, tail: LogTail, *, whole: bool) -> Record:
        """Return the job with its runs that may have unread logs. Queries the history only for earlier runs."""
        newest = self.newest(job_id)
        path = newest.last_run.log_path if newest.last_run is not None else None
        is_all = not whole if tail.path is None else path == str(tail.path)
        return newest if is_all else self.show(job_id)

    def _turned(
        self, record: Record, tail: LogTail, again: Callable[[Run], None] | None, *, whole: bool
    ) -> Iterator[bytes]:
        """Yield the unread parts of the logs before the newest run's, and point *tail* to the newest run's log."""
        logs = [(run, self._lies_here(run)) for run in record.runs if run.log_path]
        paths = [path for _, path in logs]
        from_first = whole and tail.path is None
        shown = paths.index(tail.path) if tail.path in paths else -1 if from_first else len(logs) - 2
        for run, path in logs[max(0, shown + 1) :]:
            is_first = tail.path is None
            yield from tail.rest()
            tail.turn_to(path)
            if not is_first and again is not None:
                again(run)


def _is_gone(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:  # not permitted: opening the log reports the error
        return False
    return False


def _ignored(_job: Job) -> None:
    """Do nothing."""
