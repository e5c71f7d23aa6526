"""Reads a log behind the service, by offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from gpuqueue.client.remote.link import WARNING, Link, segment
from gpuqueue.lazy.frozen import dataclass

#: Headers of a part of a log: the offset behind it, and whether the log says when it was written.
NEXT, KNOWN = "gpuqueue-next-offset", "gpuqueue-times-known"


@dataclass(frozen=True, slots=True)
class RunLog:
    """The log of one run: the name of the job, and the number of the attempt."""

    job: str
    attempt: int


class RemoteTail:
    """Yields each byte of a job's log once. A tail of :class:`gpuqueue.client.log_places.Tail`."""

    def __init__(self, link: Link, *, stderr: bool = False, warn: Callable[[str], None] | None = None) -> None:
        """Begin without a log. *warn* gets warnings about its content, each once."""
        self._warn, self._warned = warn, ""
        self.path: RunLog | None = None
        self.offset = 0
        self.stream = "stderr" if stderr else "log"
        self._link = link

    def turn_to(self, path: RunLog | None) -> None:
        """Continue in the log of the run *path*. If it differs from the current one, start at its beginning."""
        if path != self.path:
            self.path, self.offset = path, 0

    def warn(self, text: str) -> None:
        """Warn that the newest part of the log may be missing, once for each *text*."""
        if self._warn is not None and text != self._warned:
            self._warn(text)
        self._warned = text

    def check(self, path: RunLog) -> None:
        """Check that the log of *path* can be read.

        Raises:
            Refused: it is on another host, deleted, or another account's.

        """
        self._read(path, {"offset": 0, "most": 0})

    def rest(self) -> Iterator[bytes]:
        """Yield the bytes written since the last call."""
        while self.path is not None:
            content, headers = self._read(self.path, {"offset": self.offset})
            before, self.offset = self.offset, int(headers[NEXT])
            if content:
                yield content
            elif self.offset == before:
                return

    def skip_to_last(self, lines: int) -> None:
        """Skip the current content except for its last *lines* lines."""
        if self.path is not None:
            _, headers = self._read(self.path, {"lines": lines, "most": 0})
            self.offset = int(headers[NEXT])

    def skip_to_time(self, since: datetime) -> bool:
        """Skip the content written before *since*, to within a second. Return whether the position is known."""
        if self.path is None:
            return True
        _, headers = self._read(self.path, {"since": since, "most": 0})
        self.offset = int(headers[NEXT])
        return headers.get(KNOWN) != "false"

    def last(self, most_bytes: int) -> bytes:
        """Return at most the last *most_bytes*, without holes."""
        return b"" if self.path is None else self._read(self.path, {"last": most_bytes})[0]

    def _read(self, place: RunLog, query: Mapping[str, Any]) -> tuple[bytes, Mapping[str, str]]:
        asked = {"attempt": place.attempt, "stream": self.stream, **query}
        content, answer = self._link.answered("GET", f"/jobs/{segment(place.job)}/log", kind=bytes, query=asked)
        if WARNING in answer.headers:
            self.warn(answer.headers[WARNING])
        return content, answer.headers
