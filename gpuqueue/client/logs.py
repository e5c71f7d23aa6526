"""The logs of jobs: where they are, what is in them, and what is added to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.log_places import with_run
from gpuqueue.client.patience import ABSENCES, Patience
from gpuqueue.client.run_logs import delivered_log, figures_of, is_whole, own_log, time_of
from gpuqueue.client.wait import POLL_S, HeldMessage, recorded
from gpuqueue.errors import HistoryUnreachable, Refused, Unreachable
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job
from gpuqueue.system.logs import LOG, STDERR, LogTail, last_bytes
from gpuqueue.text.units import format_duration

if TYPE_CHECKING:
    from gpuqueue.client import progress as progresses
    from gpuqueue.client import terminal as terminals
    from gpuqueue.client.log_places import Tail
    from gpuqueue.client.terminal import JobTerminal
    from gpuqueue.model import run as runs
    from gpuqueue.model.progress import Progress
    from gpuqueue.model.run import Record, Run
    from gpuqueue.model.run_figures import RunFigures
else:
    progresses = later("gpuqueue.client.progress")
    terminals = later("gpuqueue.client.terminal")
    runs = later("gpuqueue.model.run")

#: Interval between two polls of a followed log, in seconds.
FOLLOW_S = 0.1


class Logs:
    """The logs of jobs that are on this machine and readable by this account.

    Those of other hosts are here as far as they were delivered to the service of this machine.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def path(self, job: int | str, *, run: int | None = None) -> Path:
        """Return the path of a log, which must be on this machine: that of run number *run*, by default the newest.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job is an array or has no such run, or its log is on another host or deleted.

        """
        if run is not None:
            return self.path_in(reads.show(self._connection, job), run=run)
        return self.path_in(reads.newest(self._connection, job))

    def path_in(self, record: Record, *, run: int | None = None) -> Path:
        """Return the path of the log of run number *run* in *record*, by default the newest.

        Raises:
            Refused: as for :meth:`path`.

        """
        if run is not None and record.job.spec.array is None:
            record = with_run(record, run)
        path, label = self._log_path_of(record), record.job.label
        if path is None:
            raise Refused(f"job {label} ({record.job.state}) has no log yet: it has not run")
        if record.job.state.is_end and _is_gone(path):
            keep_s = self._connection.settings.keep_logs_s
            kept = f"; logs are kept for {format_duration(keep_s)} (GPUQUEUE_KEEP_LOGS)" if keep_s is not None else ""
            raise Refused(f"the log of job {label} is not there any more: {path}{kept}")
        return path

    def tail(self, *, stderr: bool = False, warn: Callable[[str], None] | None = None) -> Tail:
        """Return a reader of a job's output, or of its standard error if that is separate. It has no log yet.

        *warn* is called if the newest part of a log on another host may be missing.
        """
        return LogTail(STDERR if stderr else LOG, warn)

    def turn(self, tail: Tail, record: Record, *, run: int | None = None) -> None:
        """Point *tail* to the log of run number *run* in *record*, by default the newest.

        Raises:
            Refused: as for :meth:`path`.

        """
        path = self.path_in(record, run=run)
        tail.turn_to(path)
        self._warn(path, tail)

    def end(self, record: Record, most_bytes: int, *, stderr: bool = False) -> bytes:
        """Return at most the last *most_bytes* of the newest run's output, or nothing if it cannot be read."""
        path = self.path_or_none(record)
        if path is None:
            return b""
        return last_bytes(path.with_name(STDERR) if stderr else path, most_bytes)

    def path_or_none(self, record: Record) -> Path | None:
        """Return the path of the log of the newest run in *record*, or None if there is none on this machine."""
        run = next((run for run in reversed(record.runs) if run.log_path), None)
        return None if run is None else self._place(run)

    def _log_path_of(self, record: Record) -> Path | None:
        if record.job.spec.array is not None:
            one = f"{record.job.id}_{next(iter(record.job.spec.array.indexes))}"
            raise Refused(f"array {record.job.id} has no log of its own: name a member, such as {one}")
        run = next((run for run in reversed(record.runs) if run.log_path), None)
        return None if run is None else self._is_here(run, record.job)

    def _is_here(self, run: Run, job: Job) -> Path:
        path = self._place(run)
        if path is None:
            raise Refused(f"the log of job {job.label} is on host {run.host}: {run.log_path}")
        return path

    def _place(self, run: Run) -> Path | None:
        """Return where the log of *run* is on this machine: in the run's directory, or delivered by another host."""
        settings = self._connection.settings
        if not run.token:  # of an answer of the queue's own server, which keeps tokens to itself
            run = self._with_token(run)
        return own_log(settings, run) or delivered_log(settings, run)

    def _with_token(self, run: Run) -> Run:
        """Return *run* as the history has it; unchanged if that has no such run, or is away."""
        with suppress(HistoryUnreachable):
            record = self._connection.recorded(run.job_id)
            return next((other for other in record.runs if other.attempt == run.attempt), run) if record else run
        return run

    def _warn(self, path: Path, tail: Tail) -> None:
        """Warn of a log of another host that was not delivered whole: only a service can ask for the rest."""
        if self._connection.settings.delivered_dir in path.parents and not is_whole(path):
            tail.warn(f"the log is on another host: this is what was delivered of it until {time_of(path)}")

    def progress(self, jobs: Iterable[Job], logs: Mapping[int, str] | None = None) -> dict[int, Progress]:
        """Return the progress of the running jobs of *jobs* whose output shows it, by job id.

        *logs* maps ids of jobs to log paths (:class:`gpuqueue.model.run.Listing`). Without it, the queue is asked
        for each path.
        """
        jobs = list(jobs)
        found = progresses.readings(self._connection, jobs, logs)
        return progresses.job_progress(self._connection, jobs, found)

    def figures(self, job: int | str) -> RunFigures | None:
        """Return what the run of a job that goes on has used and reported so far; None if that is unknown.

        Raises:
            JobNotFound: the job does not exist.

        """
        run = reads.newest(self._connection, job).last_run
        return None if run is None or run.ended_at is not None else figures_of(self._connection.settings, run)

    def follow(
        self,
        job: int | str,
        tail: Tail | None = None,
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
            tail: A tail of :meth:`tail`, to begin where it stands; of an earlier call, to continue where that stopped.
                With a tail, an absence of the store is waited for from the start: the caller has just read the job.
            held: Called with the job each time it becomes held.
            seen: Called several times a second with the last known state of the job.
            again: Called with each later run before the output of that run.
            away: See ``Jobs.ends``. Output is yielded during an absence of the store too.
            whole: Start with the job's first run instead of its newest.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job is an array, its log is on another host, or it ended without a run.

        """
        patience, on_seen = Patience(away), seen or _ignored
        if tail is not None:
            patience.answered()
        tail = tail or LogTail()

        def there(seen_so: Job) -> None:
            patience.answered()
            on_seen(seen_so)

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
        tail: Tail,
        notification: HeldMessage,
        seen: Callable[[Job], None],
        again: Callable[[Run], None] | None,
        *,
        whole: bool,
    ) -> Iterator[bytes]:
        """Implement :meth:`follow` while the store is reachable. A later call continues at *tail*."""
        with self._connection.ends() as wakeups:
            while True:
                job = reads.get(self._connection, job_id)
                ended = job.state.is_end  # read before the log, so that no output written before the end is missed
                if ended:
                    recorded(self._connection, job)  # wait briefly for the history, which has the log's path
                notification.update(job)
                seen(job)
                if job.spec.array is not None:
                    self._log_path_of(runs.Record(job=job))  # raises: an array has no log
                if job.attempt:  # without an attempt there is no log, and the history need not be queried
                    yield from self.turned(self.runs_to_read(job, tail, whole=whole), tail, again, whole=whole)
                yield from tail.rest()
                if ended:
                    self.path(job_id)  # raises if there is no log
                    return
                until = time.monotonic() + (FOLLOW_S if tail.path is None else POLL_S)
                while time.monotonic() < until:
                    wake = wakeups.wait(FOLLOW_S)
                    yield from tail.rest()
                    seen(job)
                    if wake is not None and wake.job_id == job.id:
                        break

    def terminal(self, job: int | str, tail: Tail) -> JobTerminal | None:
        """Return the terminal of the running job whose log *tail* reads, or None if it has none any more.

        Raises:
            Refused: the terminal cannot be opened, or is another account's or on another host.

        """
        if tail.path is not None and self._connection.settings.delivered_dir in tail.path.parents:
            raise Refused(f"job {job} runs on another host: its terminal can be used through a service only")
        try:
            return terminals.LocalTerminal(tail.path, tail)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            raise Refused(f"you cannot type to job {job} from here: {error.strerror}") from None

    def runs_to_read(self, job: Job, tail: Tail, *, whole: bool) -> Record:
        """Return the job with its runs that may have unread logs. Queries the history only for earlier runs.

        While the history is away, the job has the runs that the store knows: possibly none between two runs.
        """
        newest = runs.Record(job=job)
        try:
            newest = reads.newest(self._connection, job.label)
            last = newest.last_run
            path = self._place(last) if last is not None and last.log_path else None
            is_all = not whole if tail.path is None else path == tail.path
            return newest if is_all else reads.show(self._connection, job.label)
        except HistoryUnreachable:
            return newest

    def turned(
        self, record: Record, tail: Tail, again: Callable[[Run], None] | None, *, whole: bool
    ) -> Iterator[bytes]:
        """Yield the unread parts of the logs before the newest run's, and point *tail* to the newest run's log."""
        logs = [(run, self._is_here(run, record.job)) for run in record.runs if run.log_path]
        paths = [path for _, path in logs]
        from_first = whole and tail.path is None
        shown = paths.index(tail.path) if tail.path in paths else -1 if from_first else len(logs) - 2
        for run, path in logs[max(0, shown + 1) :]:
            is_first = tail.path is None
            yield from tail.rest()
            tail.turn_to(path)
            self._warn(path, tail)
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
