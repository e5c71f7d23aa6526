"""One step of following a log: what is new in it, and whether the job has ended."""

from __future__ import annotations

import time
from dataclasses import replace

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.client.logs import Logs
from gpuqueue.client.wait import RECORD_S, recorded_now
from gpuqueue.errors import BadRequest
from gpuqueue.model.access import Action
from gpuqueue.model.job import Job
from gpuqueue.model.run import Record
from gpuqueue.service.call import Call
from gpuqueue.service.events import event
from gpuqueue.system.logs import LogTail

#: Most bytes of output in one step. The rest comes with the next step, so that one log does not hold up others.
MOST_BYTES = 1024 * 1024


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
        for run in [each for each in runs if each.attempt > self._attempt]:
            if self._attempt:
                found += self.output(call)
                if self.has_more:
                    return found
                found.append(event("run", call.run(run, job.spec.account)))
            path = logs.path_or_none(Record(job=job, runs=(run,)))
            if path is None:
                logs.path_in(Record(job=job, runs=(run,)))  # raises: the log lies on another host
            self._tail.turn_to(path)
            self._attempt = run.attempt
        return found

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
