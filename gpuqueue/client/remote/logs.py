"""The group ``client.logs`` over the service. The methods are those of :class:`gpuqueue.client.logs.Logs`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client.log_places import with_run
from gpuqueue.client.patience import ABSENCES, Patience
from gpuqueue.client.remote.link import Link, error_of, segment
from gpuqueue.client.remote.log_tail import RemoteTail, RunLog
from gpuqueue.codec.wire import from_plain
from gpuqueue.errors import Refused, ServiceUnreachable, Unreachable
from gpuqueue.lazy.imports import later
from gpuqueue.model import job_ref
from gpuqueue.model.job import Job, JobState

if TYPE_CHECKING:
    from gpuqueue.client.log_places import Tail
    from gpuqueue.client.logs import Logs as Direct
    from gpuqueue.client.remote import terminal as terminals
    from gpuqueue.client.remote.terminal import RemoteTerminal
    from gpuqueue.model import api, run_figures
    from gpuqueue.model import progress as progresses
    from gpuqueue.model import run as runs
    from gpuqueue.model import terminal_size as terminal_sizes
    from gpuqueue.model.progress import Progress
    from gpuqueue.model.run import Record, Run
    from gpuqueue.model.run_figures import RunFigures
else:
    Direct = object
    api = later("gpuqueue.model.api")
    progresses = later("gpuqueue.model.progress")
    run_figures = later("gpuqueue.model.run_figures")
    runs = later("gpuqueue.model.run")
    terminal_sizes = later("gpuqueue.model.terminal_size")
    terminals = later("gpuqueue.client.remote.terminal")


class RemoteLogs(Direct):
    """The logs of jobs that the service can read."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def path(self, job: int | str, *, run: int | None = None) -> Path:  # noqa: ARG002 - the signature of the direct client
        """Refuse: only the direct client knows the path of a log.

        Raises:
            Refused: always.

        """
        raise Refused("a service shows no paths of logs: read the log itself, with client.logs.tail or gpuqueue logs")

    def path_in(self, record: Record, *, run: int | None = None) -> Path:
        """Refuse, as :meth:`path` does."""
        return self.path(record.job.label, run=run)

    def path_or_none(self, record: Record) -> Path | None:  # noqa: ARG002 - the signature of the direct client
        """Return None: no path is known."""
        return None

    def tail(self, *, stderr: bool = False, warn: Callable[[str], None] | None = None) -> RemoteTail:
        """Return a reader of a job's output, or of its standard error if that is separate. It has no log yet.

        *warn* is called if the newest part of a log on another host may be missing.
        """
        return RemoteTail(self._link, stderr=stderr, warn=warn)

    def turn(self, tail: Tail, record: Record, *, run: int | None = None) -> None:
        """Point *tail* to the log of run number *run* in *record*, by default the newest.

        Raises:
            Refused: the job is an array or has not run yet, or its log is on another host or deleted.

        """
        if record.job.spec.array is not None:
            one = f"{record.job.id}_{next(iter(record.job.spec.array.indexes))}"
            raise Refused(f"array {record.job.id} has no log of its own: name a member, such as {one}")
        runs = with_run(record, run).runs if run is not None else record.runs
        last = next((each for each in reversed(runs) if each.log_path), None)
        if last is None:
            raise Refused(f"job {record.job.label} ({record.job.state}) has no log yet: it has not run")
        place = RunLog(record.job.label, last.attempt)
        _remote(tail).check(place)
        tail.turn_to(place)

    def end(self, record: Record, most_bytes: int, *, stderr: bool = False) -> bytes:
        """Return at most the last *most_bytes* of the newest run's output, or nothing if it cannot be read."""
        tail = self.tail(stderr=stderr)
        try:
            self.turn(tail, record)
            return tail.last(most_bytes)
        except Refused:
            return b""

    def progress(self, jobs: Iterable[Job], logs: Mapping[int, str] | None = None) -> dict[int, Progress]:  # noqa: ARG002 - the service knows the logs
        """Return the progress of the running jobs of *jobs* whose output shows it, by job id."""
        ids = [job.id for job in jobs if job.state is JobState.RUNNING]
        if not ids:
            return {}
        return self._link.send("POST", "/progress", {"jobs": ids}, kind=dict[int, progresses.Progress])

    def figures(self, job: int | str) -> RunFigures:
        """Return what the run of a job that goes on has used and reported so far."""
        return self._link.send("GET", f"/jobs/{segment(job_ref.job_name(job))}/figures", kind=run_figures.RunFigures)

    def terminal(self, job: int | str, tail: Tail) -> RemoteTerminal | None:
        """Return the terminal of the running job whose log *tail* reads, or None if it has none any more.

        Raises:
            Refused: the job is another account's, or its terminal cannot be used.
            HostUnreachable: the job runs on another host than the service, which does not answer.

        """
        name = segment(job_ref.one_job(job))
        window = terminal_sizes.Window.ours()
        there = self._link.send("POST", f"/jobs/{name}/terminal", api.TerminalInput(window=window), kind=api.Whether)
        return terminals.RemoteTerminal(self._link, name, _remote(tail), self.follow) if there.answer else None

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

        After a restart of the service, the output continues where it stopped.
        """
        name = segment(job_ref.one_job(job))
        followed = _remote(tail) if tail is not None else self.tail()
        following = Following(self._link, name, followed, held=held, seen=seen, again=again, whole=whole)
        patience = Patience(away)
        if tail is not None:
            patience.answered()
        while not following.is_over:
            try:
                yield from following.output(patience.answered)
            except ABSENCES as error:
                patience.bear(error)


def _remote(tail: Tail) -> RemoteTail:
    if not isinstance(tail, RemoteTail):
        raise TypeError("a log behind a service is read with client.logs.tail()")
    return tail


class Following:
    """A log that is followed by the events of the service. A stream that was cut off goes on with the next one."""

    def __init__(
        self,
        link: Link,
        name: str,
        tail: RemoteTail,
        *,
        held: Callable[[Job], None] | None,
        seen: Callable[[Job], None] | None,
        again: Callable[[Run], None] | None,
        whole: bool,
    ) -> None:
        self._link, self._name, self._tail = link, name, tail
        self._held, self._seen, self._again = held, seen, again
        self._whole = whole
        self._job: Job | None = None
        #: Whether the job has ended and all of its output was yielded.
        self.is_over = False

    def output(self, answered: Callable[[], None]) -> Iterator[bytes]:
        """Yield the output of one stream. *answered* is called with each sign of life of the service.

        Raises:
            ServiceUnreachable: the stream was cut off.

        """
        place, headers = self._tail.path, {}
        if place is not None:
            headers["Last-Event-ID"] = f"{place.attempt}:{self._tail.offset}"
        query = {"stream": self._tail.stream, "whole": self._whole}
        name = data = event_id = ""
        for line in self._link.stream(f"/jobs/{self._name}/log/stream", query, headers):
            answered()
            field, _, value = line.decode("ascii", "replace").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data = value
            elif field == "id":
                event_id = value
            elif field:  # a sign of life
                self._report_state()
            elif name:
                content = self._took(name, data, event_id)
                if content:
                    yield content
                if self.is_over:
                    return
                name = data = event_id = ""
        raise ServiceUnreachable(f"the service at {self._link.url} has ended the stream of job {self._name}")

    def _took(self, name: str, data: str, event_id: str) -> bytes:
        """Handle one event and return its output."""
        plain = json.loads(data)
        if name == "output":
            attempt, _, offset = event_id.partition(":")
            self._tail.path, self._tail.offset = RunLog(self._name, int(attempt)), int(offset)
            return str(plain).encode("utf-8", "surrogateescape")
        if name == "job":
            before, self._job = self._job, from_plain(Job, plain)
            is_new = before is None or before.state is not JobState.HELD
            if self._held is not None and self._job.state is JobState.HELD and is_new:
                self._held(self._job)
            self._report_state()
        elif name == "run" and self._again is not None:
            self._again(from_plain(runs.Run, plain))
        elif name == "warning":
            self._tail.warn(str(plain))
        elif name == "problem":
            raise error_of(str(plain["error"]), str(plain["detail"]), int(plain["exit_code"]))
        elif name == "end":
            self.is_over = True
        return b""

    def _report_state(self) -> None:
        if self._seen is not None and self._job is not None:
            self._seen(self._job)
