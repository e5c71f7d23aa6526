"""Reads what the processes of a run report about it: lines of the file ``metrics`` and of the log.

The job writes both files, so they may hold anything, grow at any rate, or be something else. They are read at each
heartbeat and at the end of the run, from where the last reading ended, and what was read is saved with the figures of
the run. So a worker that adopts the run reads nothing twice and leaves nothing out.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.errors import Unreadable
from gpuqueue.model.job_values import Collected, JobValues, metrics_in
from gpuqueue.model.run import NoteKind, RunNote
from gpuqueue.system.logs import LOG, next_data
from gpuqueue.system.safe_open import open_regular
from workers.run.verdict import TAIL_BYTES
from workers.shim.acl import METRICS
from workers.shim.supervisor import MAX_REPORTS_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Most bytes of one file that are read at a heartbeat, which take some tenths of a second. Of a log that grows faster
#: only the newest are searched. At the end of the run, all is read that the shim has kept of the file ``metrics``.
MOST_BYTES = 1024 * 1024
CHUNK_BYTES = 256 * 1024
#: What the lines of a log have that report metrics: to look for these takes a tenth of the time.
MARKS = (b"metric:", b"{'", b"it/s", b"/it, ", b"/s, ")


@dataclass(slots=True)
class KeptValues:
    """The values of a run so far, how far each file was read, and how many bytes of ``metrics`` were removed before."""

    collected: Collected = field(default_factory=Collected)
    offsets: dict[str, int] = field(default_factory=lambda: {METRICS: 0, LOG: 0})
    missing_bytes: int = 0

    def __post_init__(self) -> None:
        if self.offsets.keys() != {METRICS, LOG}:
            raise ValueError("an offset is missing")


class ValuesReader:
    """The values that one run has reported so far. Thread-safe."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._lock = threading.Lock()
        self._kept = KeptValues()

    def read(self, since_s: float, now_s: float, log_tail: bytes | None = None) -> None:
        """Read what is new. *since_s* is the start of the run and *now_s* now, on the host's monotonic clock.

        With *log_tail*, the end of its log, the run is over, and a line without an end counts.
        """
        is_over = log_tail is not None
        with self._lock:
            for text in self._new(METRICS, is_over=is_over):
                for line in text.splitlines():
                    self._kept.collected.add_line(line, since_s, now_s)
            is_whole = log_tail is not None and not self._kept.offsets[LOG] and len(log_tail) < TAIL_BYTES
            for text in [log_tail or b""] if is_whole else self._new(LOG, is_over=is_over):
                if any(mark in text for mark in MARKS):
                    for values, step in metrics_in(text):
                        self._kept.collected.add_metrics(values.items(), now_s - since_s, step)
            if is_whole:
                self._kept.offsets[LOG] = len(log_tail or b"")

    def values(self) -> JobValues | None:
        """Return all values so far, or None if there are none."""
        with self._lock:
            found = self._kept.collected.values()
        return None if found == JobValues() else found

    @property
    def broken(self) -> str | None:
        """The first metric that is no number now, in words: ``loss is NaN``; None if there is none."""
        with self._lock:
            return self._kept.collected.broken()

    @property
    def gap(self) -> RunNote | None:
        """The note that a part of what the job reported was not read; None if all was."""
        if not self._kept.missing_bytes:
            return None
        return RunNote(kind=NoteKind.METRICS_IN_PART.value, size_bytes=self._kept.missing_bytes)

    def _new(self, name: str, *, is_over: bool) -> Iterator[bytes]:
        """Yield the lines of a file since the last call. Reads no link and waits for no pipe. Raises nothing."""
        path = f"{self._run_dir}/{name}"
        with contextlib.suppress(OSError, Unreadable):
            size = os.stat(path, follow_symlinks=False).st_size  # noqa: PTH116 - a Path is slower to create than this
            if size == self._kept.offsets[name]:
                return
            self._skip(name, size)
            fd = open_regular(path)
            try:
                yield from self._lines(fd, name, size, is_over=is_over)
            finally:
                os.close(fd)

    def _skip(self, name: str, size: int) -> None:
        """Begin where reading can begin, in a file of *size* bytes: it was cut, or grows faster than it is read."""
        offset = self._kept.offsets[name]
        if size < offset:
            self._missed(name, offset - size)
            self._kept.offsets[name] = size
        elif name == LOG:
            self._kept.offsets[name] = max(offset, size - MOST_BYTES)

    def _missed(self, name: str, count: int) -> None:
        if name == METRICS:
            self._kept.missing_bytes += count

    def _lines(self, fd: int, name: str, size: int, *, is_over: bool) -> Iterator[bytes]:
        left = MAX_REPORTS_BYTES if is_over and name == METRICS else MOST_BYTES
        offsets = self._kept.offsets
        while left > 0 and offsets[name] < size and (found := next_data(fd, offsets[name], CHUNK_BYTES)):
            begin, data = found
            whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1  # a bar is redrawn in its line
            if not whole and begin + len(data) >= size and not is_over:
                return  # the job has not ended the line yet
            data = data[: whole or len(data)]
            self._missed(name, begin - offsets[name])
            offsets[name] = begin + len(data)
            left -= len(data)
            yield data

    def to_plain(self) -> dict[str, Any] | None:
        """Return what another worker continues as plain values, or None if there are none."""
        with self._lock:
            if self._kept.collected == Collected() and not self._kept.missing_bytes:
                return None
            return to_stored(self._kept)  # type: ignore[no-any-return] # a value becomes a dictionary

    def resume(self, plain: object) -> None:
        """Restore what :meth:`to_plain` of another worker returned.

        Raises:
            Unreadable: *plain* is not valid.

        """
        kept = from_plain(KeptValues, plain, "the values of a run")
        with self._lock:
            self._kept = kept
