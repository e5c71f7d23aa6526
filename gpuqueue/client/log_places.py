"""The interface of all readers of logs: of files on this machine, and of logs behind a service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from gpuqueue.errors import Refused

if TYPE_CHECKING:
    from gpuqueue.model.run import Record


class Tail(Protocol):
    """Yields each byte of a job's log once, even if a new run continues in another log."""

    #: Where the log of the run is: a path here, or a name for the service. None before the first run.
    path: Any

    def turn_to(self, path: Any) -> None:
        """Continue in the log at *path*. If it differs from the current one, start at its beginning."""

    def skip_to_last(self, lines: int) -> None:
        """Skip the current content except for its last *lines* lines."""

    def skip_to_time(self, since: datetime) -> bool:
        """Skip the content written before *since*. Return whether the position is known."""

    def warn(self, text: str) -> None:
        """Warn that the newest part of the log may be missing, once for each *text*."""

    def rest(self) -> Iterator[bytes]:
        """Yield the bytes written since the last call."""


def with_run(record: Record, number: int) -> Record:
    """Return *record* with only run *number*.

    Raises:
        Refused: the job has no such run.

    """
    found = tuple(run for run in record.runs if run.attempt == number)
    if not found:
        known = ", ".join(str(run.attempt) for run in record.runs) or "none"
        raise Refused(f"job {record.job.label} has no run {number}: its runs are {known}")
    return replace(record, runs=found)
