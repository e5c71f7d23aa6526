"""The thread of an executor that waits for the ends of all its jobs, and gives each future its result."""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuqueue.client import Client
from gpuqueue.errors import GpuQueueError, NoResult, Refused, WaitTimeout
from gpuqueue.executor.calls import InsideJob, settle
from gpuqueue.executor.inside import RESULT
from gpuqueue.executor.submissions import Submission
from gpuqueue.model.job import Job, JobState
from gpuqueue.settings.settings import Settings

_logger = logging.getLogger("gpuqueue")
#: How long a wait for the known jobs lasts before those that were submitted since are waited for, too, in seconds.
ROUND_S = 1.0
#: Each poll asks for each job, so a round is longer with more jobs: this many seconds for each.
ROUND_FOR_EACH_S = 0.01
#: The directory of a call in the copy of its code.
TRAVELLING = ".gpuqueue-calls"
#: The last bytes of a log that are shown with the end of a job.
LOG_BYTES = 2048
#: How long a program that ends waits for the removal of files, at most, in seconds.
END_S = 5.0


class Watcher:
    """Waits in a thread, with a client of its own, while there are futures without a result.

    The thread does not keep the program from ending: the jobs go on without it.
    """

    def __init__(self, settings: Settings, *, keeps: bool) -> None:
        self._settings, self._keeps = settings, keeps
        self._lock = threading.Lock()
        self._open: dict[str, Future] = {}
        self._held: set[int] = set()
        self._thread: threading.Thread | None = None
        #: Held while a future gets its result and its files are removed. A program that ends now waits for that.
        self._ending = threading.Lock()
        atexit.register(self._ending.acquire, timeout=END_S)

    def add(self, futures: Sequence[Future]) -> None:
        """Wait for *futures*, too."""
        with self._lock:
            self._open |= {each.job: each for each in futures}
            if self._open and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gpuqueue-executor", daemon=True)
                self._thread.start()

    def open(self) -> list[Future]:
        """Return the futures that have no result yet."""
        with self._lock:
            return [*self._open.values()]

    def find(self, job: str) -> Future | None:
        """Return the open future of *job*, if there is one."""
        return self._open.get(job)

    def join(self) -> None:
        """Wait until no future is open."""
        while (thread := self._thread) not in {None, threading.current_thread()}:
            thread.join()

    def _run(self) -> None:
        with Client(self._settings) as client:
            while futures := self._left():
                names = {each.job: each for each in futures}
                try:
                    round_s = max(ROUND_S, ROUND_FOR_EACH_S * len(names))
                    for name, job in client.jobs.ends([*names], timeout_s=round_s, held=self._report_held):
                        self._ended(client, names[str(name)], job)
                except WaitTimeout:
                    continue
                except Exception as error:  # noqa: BLE001 - it belongs to the threads that wait for a result
                    for each in futures:
                        self._give_up(each, error)

    def _report_held(self, job: Job) -> None:
        """Log that *job*, or its array, is held: a program that waits for it waits for a person. Each once."""
        whole = job.id if job.member is None else job.member.array_id
        if whole not in self._held:
            self._held.add(whole)
            _logger.warning("job %s is held: gpuqueue why %s", job.label, job.label)

    def _left(self) -> list[Future]:
        """Return the open futures; if there are none, the thread ends, and the next future starts another."""
        with self._lock:
            if not self._open:
                self._thread = None
            return [*self._open.values()]

    def _give_up(self, future: Future, error: Exception) -> None:
        if not future.done():
            future.set_exception(error)
        with self._lock:
            self._open.pop(future.job, None)

    def _ended(self, client: Client, future: Future, job: Job) -> None:
        """Give *future* what its *job* has left, and remove the files of a submission that has no more open jobs."""
        with self._ending:
            self._settled(client, future, job)

    def _settled(self, client: Client, future: Future, job: Job) -> None:
        submission = future.submission
        try:
            if job.state is JobState.CANCELLED:
                future.set_cancelled()
            elif not future.done():
                if submission.about.travels:
                    _fetch(client, future)
                if not future.settle():
                    future.set_exception(_no_result(client, job))
        except Exception as error:  # noqa: BLE001 - as in _run
            self._give_up(future, error)
        with self._lock:
            self._open.pop(future.job, None)
            is_last = not any(each.submission is submission for each in self._open.values())
        if is_last and not self._keeps:
            submission.remove()


def _fetch(client: Client, future: Future) -> None:
    """Bring the result of a call whose code has travelled to its place here, if the job has left one."""
    submission, number = future.submission, future.number
    into = submission.folder / f"fetched-{number}"
    with suppress(Refused):  # no file matches
        client.files.fetch(future.job, [f"{TRAVELLING}/*{RESULT}"], to=into, replace=True)
        for each in Path(into).rglob(f"*{RESULT}"):
            each.replace(submission.result(number))
    shutil.rmtree(into, ignore_errors=True)


def _no_result(client: Client, job: Job) -> NoResult:
    """Return the error for a *job* that ended without a result: how it ended, and the end of its log."""
    record = client.jobs.recorded(job)
    run = record.last_run
    how = str(job.state) if run is None or run.ending is None else str(run.ending)
    error = NoResult(f"job {job.label} ({job.spec.name}) ended without a result: {how}", job.label)
    with suppress(GpuQueueError):
        log = client.logs.end(record, LOG_BYTES).decode(errors="replace")
        if log.strip():
            error.__cause__ = InsideJob(f"The end of its log:\n\n{log}")
    return error


class Future(concurrent.futures.Future[Any]):
    """The result of a call that runs as a job.

    Attributes:
        job: The name of the job: ``"17"``, or ``"17_2"`` for a member of an array.
        submission: The files of the call and of those that were submitted with it.
        number: The number of the call among these.

    """

    def __init__(
        self, submission: Submission, number: int, *, cancel: Callable[[str], bool], is_active: Callable[[str], bool]
    ) -> None:
        super().__init__()
        self.job = submission.about.label(number)
        self.submission, self.number = submission, number
        self._cancel, self._is_active = cancel, is_active

    def cancel(self) -> bool:
        """End the job, whether it waits or runs. Return False if it has ended already.

        Unlike a call of ``concurrent.futures``, a running one can be cancelled, since a job can. The future is
        cancelled at once; the processes of the job are gone a moment later.
        """
        if not self.done() and self._cancel(self.job):
            self.set_cancelled()
        return self.cancelled()

    def running(self) -> bool:
        """Return whether the job holds a device now. The queue is asked."""
        return not self.done() and self._is_active(self.job)

    def set_cancelled(self) -> None:
        """Set the state to cancelled, and wake up the threads that wait."""
        with self._condition:
            if not self.done() and super().cancel():
                self.set_running_or_notify_cancel()

    def settle(self) -> bool:
        """Take the result from its file. Return False if the job has left none."""
        return settle(self, self.submission.result(self.number), self.job)
