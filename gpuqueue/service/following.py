"""The logs that the service reads: what to ask another host for first, and one step of following a log."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.logs import Logs
from gpuqueue.client.run_logs import delivered_log, is_whole, own_log, time_of
from gpuqueue.client.wait import RECORD_S, recorded_now
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import Action
from gpuqueue.model.job import Job
from gpuqueue.model.run import Record, Run
from gpuqueue.service.call import Call
from gpuqueue.service.relay_requests import HostRun
from gpuqueue.service.responses import event
from gpuqueue.settings.settings import Settings
from gpuqueue.system.delivered_layout import TOKEN
from gpuqueue.system.logs import LogTail

#: Most bytes of output in one step. The rest comes with the next step, so that one log does not hold up others.
MOST_BYTES = 1024 * 1024
#: How often another host is asked for the log of a run that goes on, in seconds. It sends what is new for 30 s.
ASK_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The log of a run that its host has not delivered whole. It may grow while the run goes on."""

    run: HostRun
    attempt: int
    goes_on: bool


def wanted(settings: Settings, job: Job, run: Run) -> Wanted | None:
    """Return what to ask the host of *run* for, or None if its log is here, or whole."""
    if own_log(settings, run) is not None or not TOKEN.fullmatch(run.token):
        return None
    delivered = delivered_log(settings, run)
    if delivered is not None and is_whole(delivered):
        return None
    goes_on = job.state.is_active and run.attempt == job.attempt and run.ended_at is None
    return Wanted(run=HostRun.of(run), attempt=run.attempt, goes_on=goes_on)


def warning(trouble: str, log: Path) -> str:
    """Return the warning about a *log* of which the newest part may be missing because of *trouble*."""
    return f"{trouble}: this is its log until {time_of(log)}"


class FollowedLog:
    """A log that one client follows. *mark* is the id of the last event that the client has received."""

    def __init__(self, name: str, stream: str, mark: str | None, *, whole: bool) -> None:
        self.name, self._whole = name, whole
        self._tail = LogTail(stream)
        self._mark = None if not mark else _read_mark(mark)
        self._attempt = 0
        self._job: Job | None = None
        #: The id of the job, for its wake-ups. None before the first step.
        self.job_id: int | None = None
        #: Whether the stream is over: the job has ended and its output was sent.
        self.is_over = False
        #: Whether the last step has stopped before the end of the output.
        self.has_more = False
        #: Whether the job has ended and the history lags: the next step comes soon.
        self.is_behind = False
        self._behind_until_s: float | None = None
        #: The log that another host is to be asked for before the next step: see :meth:`asked`.
        self.wanted: Wanted | None = None
        #: The last request for the log of each run, and when it was made, on the monotonic clock.
        self._asked: dict[int, tuple[Wanted, float]] = {}
        #: The trouble with the last request, and that of the last warning.
        self._trouble: str | None = None
        self._warned: str | None = None

    def asked(self, trouble: str | None) -> None:
        """Note that the host was asked for the log that was wanted; *trouble* says why it did not deliver it."""
        if self.wanted is not None:
            self._asked[self.wanted.attempt] = self.wanted, time.monotonic()
        self.wanted, self._trouble = None, trouble

    def output(self, _call: Call) -> list[str]:
        """Return the events of output that is new in the current log. The state of the job is not read."""
        found, size = [], 0
        self.has_more = False
        for chunk in self._tail.rest():
            text = chunk.decode("utf-8", "surrogateescape")
            found.append(event("output", text, f"{self._attempt}:{self._tail.offset}"))
            size += len(chunk)
            if size >= MOST_BYTES:
                self.has_more = True
                break
        return found

    def step(self, call: Call) -> list[str]:
        """Return all new events: the state of the job, the beginnings of runs, and output."""
        connection = call.connection
        job = reads.get(connection, self.name)
        if self.job_id is None:
            call.must_read(Action.SEE_LOGS, job)
        else:
            call.must(Action.SEE_LOGS, job.spec.account)
        self.job_id = job.id
        self.is_behind = job.state.is_end and self._lags(connection, job)
        if self.is_behind:  # the history has the log's path
            return []
        found = []
        if self._job is None or (job.state, job.attempt) != (self._job.state, self._job.attempt):
            found.append(event("job", call.job(job)))
        self._job = job
        logs = Logs(connection)
        if job.spec.array is not None:
            logs.path_in(Record(job=job))  # raises: an array has no log
        if job.attempt:
            found += self._runs(call, logs, job)
        if self.wanted is not None:
            return found
        found += self.output(call)
        if job.state.is_end and not self.has_more and self._is_newest(job):
            logs.path(self.name)  # raises if there is no log
            found.append(event("end", None))
            self.is_over = True
        return found

    def _lags(self, connection: Connection, job: Job) -> bool:
        """Return whether the history is still to record the end of *job*. It has RECORD_S from the first call on."""
        now_s = time.monotonic()
        self._behind_until_s = self._behind_until_s or now_s + RECORD_S
        return recorded_now(connection, job, is_last=now_s >= self._behind_until_s) is None

    def _is_newest(self, job: Job) -> bool:
        return self._attempt == job.attempt or not job.attempt or self._tail.path is None

    def _runs(self, call: Call, logs: Logs, job: Job) -> list[str]:
        """Return the events of the logs before the newest run's, and point the tail to the newest run's log."""
        if self._mark is not None:
            self._resume(call, logs)
        found: list[str] = []
        record = logs.runs_to_read(job, self._tail, whole=self._whole)
        runs = [run for run in record.runs if run.log_path]
        if self._tail.path is None and not self._whole:
            runs = runs[-1:]
        for run in [each for each in runs if each.attempt >= self._attempt]:
            if self._is_wanted(call, job, run):
                return found
            if run.attempt == self._attempt:
                continue
            if self._attempt:
                found += self.output(call)
                if self.has_more:
                    return found
                found.append(event("run", call.run(run, job.spec.account)))
            path = logs.path_or_none(Record(job=job, runs=(run,)))
            if path is None and self._trouble is not None:
                raise Refused(f"the log of job {job.label} is on another host: {self._trouble}")
            self._tail.turn_to(path or logs.path_in(Record(job=job, runs=(run,))))
            self._attempt = run.attempt
        return found + self._warning()

    def _is_wanted(self, call: Call, job: Job, run: Run) -> bool:
        """Return whether the host of *run* is to be asked for its log before it is read."""
        asking = wanted(call.connection.settings, job, run)
        if asking is None:
            return False
        before, at_s = self._asked.get(run.attempt, (None, 0.0))
        is_old = time.monotonic() - at_s >= ASK_S
        # Once more when the run has ended: its last lines may have come after the last answer.
        is_due = before is None or (before.goes_on and (is_old or not asking.goes_on))
        self.wanted = asking if is_due else None
        return is_due

    def _warning(self) -> list[str]:
        """Return the event about a host that does not deliver, once for each text."""
        trouble, path = self._trouble, self._tail.path
        text = None if trouble is None or path is None else warning(trouble, path)
        is_new, self._warned = text is not None and trouble != self._warned, trouble
        return [event("warning", text)] if is_new else []

    def _resume(self, call: Call, logs: Logs) -> None:
        """Go to where an earlier stream was cut off."""
        assert self._mark is not None  # noqa: S101 - checked by the caller
        attempt, offset = self._mark
        record = call.client.jobs.show(self.name)
        run = next((each for each in record.runs if each.attempt == attempt and each.log_path), None)
        if run is None:
            raise BadRequest(f"job {self.name} has no log of run {attempt} to continue")
        path = logs.path_or_none(replace(record, runs=(run,)))
        if path is not None:
            self._tail.resume(path, offset)
            self._attempt = attempt
        self._mark = None


def _read_mark(mark: str) -> tuple[int, int]:
    attempt, _, offset = mark.partition(":")
    if not (attempt.isdecimal() and offset.isdecimal() and len(mark) < 40):  # noqa: PLR2004 - two numbers
        raise BadRequest("Last-Event-ID is not one of this stream: it is like 1:4096")
    return int(attempt), int(offset)
