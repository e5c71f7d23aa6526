"""Follows a log by the events of the service, from where an earlier stream was cut off."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gpuqueue.client.remote.link import Link, error_of
from gpuqueue.client.remote.log_tail import RemoteTail, RunLog
from gpuqueue.codec.wire import from_answer
from gpuqueue.errors import ServiceUnreachable
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job, JobState

if TYPE_CHECKING:
    from gpuqueue.model import run as runs
    from gpuqueue.model.run import Run
else:
    runs = later("gpuqueue.model.run")


class Following:
    """A log that is followed through several streams."""

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
            before, self._job = self._job, from_answer(Job, plain)
            is_new = before is None or before.state is not JobState.HELD
            if self._held is not None and self._job.state is JobState.HELD and is_new:
                self._held(self._job)
            self._report_state()
        elif name == "run" and self._again is not None:
            self._again(from_answer(runs.Run, plain))
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
