"""Lines on stderr that are updated in place: why a followed job waits, and how many bytes have arrived."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpuqueue.cli.output.render import is_dumb
from gpuqueue.client import Client
from gpuqueue.console import print_message
from gpuqueue.errors import GpuQueueError
from gpuqueue.model.job import Job, JobState
from gpuqueue.text.sanitize import in_words
from gpuqueue.text.units import format_bytes, format_duration

if TYPE_CHECKING:
    from gpuqueue.client.why import Why

#: Shortest wait that is reported, and shortest time after which arrived bytes are, in seconds.
PATIENCE_S, BYTES_PATIENCE_S = 1.0, 0.5
#: Time between two queries for the explanation, in seconds. The query is expensive for the store.
ASK_S = 5.0
#: Time between two updates of the line of a wait, and of that of bytes, in seconds.
WRITE_S, BYTES_WRITE_S = 1.0, 0.2
#: Free columns after the line: for the cursor, and for the ^C that a terminal prints there.
BESIDE = 3
#: Returns to the beginning of the line and clears it.
CLEAR = "\r\x1b[K"


class UpdatedLine:
    """A line on stderr that is updated in place, if stderr is a terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty() and not is_dumb()
        self._began_s = time.monotonic()
        self._is_shown = False

    def clear(self) -> None:
        """Clear the line before other output."""
        if self._is_shown:
            self._put(CLEAR)
            self._is_shown = False

    def _show(self, text: str) -> None:
        self._put(CLEAR + text)
        self._is_shown = True

    @staticmethod
    def _put(text: str) -> None:
        """Write to stderr without click, which removes the sequence that clears the line if colours are off."""
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


class BytesLine(UpdatedLine):
    """Prints how much has arrived, and how fast."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = self._began_s + BYTES_PATIENCE_S

    def seen(self, size_bytes: int) -> None:
        """Update the line."""
        now = time.monotonic()
        if not self._is_terminal or now < self._next_s:
            return
        self._next_s = now + BYTES_WRITE_S
        rate = format_bytes(round(size_bytes / (now - self._began_s)))
        self._show(f"{format_bytes(size_bytes)}, {rate}/s")


class ReplayLine(UpdatedLine):
    """Prints how many jobs of a replay have arrived."""

    def seen(self, number: int) -> None:
        """Update the line: *number* jobs have arrived."""
        now = time.monotonic()
        if self._is_terminal and now >= self._began_s + WRITE_S:
            self._began_s = now
            self._show(f"jobs replayed: {number}")


class WaitLine(UpdatedLine):
    """Prints on stderr why a job waits: on a terminal one line that is updated, otherwise a line for each change."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._asked_s = self._wrote_s = float("-inf")
        self._reported = ""
        self._found: Why | None = None

    def seen(self, job: Job) -> None:
        """Update the line for the current state of the job."""
        now = time.monotonic()
        if job.state is not JobState.QUEUED:
            self.clear()
            self._reported = ""
            self._began_s = now
        elif now - self._began_s >= PATIENCE_S and now - self._wrote_s >= WRITE_S:
            self._wrote_s = now
            self._write(job, now)

    def _write(self, job: Job, now: float) -> None:
        from gpuqueue.words.why.sentences import waits_in_brief  # noqa: PLC0415 - lazy: most jobs start at once

        if not self._is_terminal:
            reason = str(job.reason)
            if reason != self._reported:
                self._reported = reason
                self._ask(job, now)
                print_message("gpuqueue", waits_in_brief(job, self._found))
            return
        if now - self._asked_s >= ASK_S:
            self._ask(job, now)
        waited_s = max(0.0, (datetime.now(timezone.utc) - job.submitted_at).total_seconds())
        width = shutil.get_terminal_size().columns - BESIDE
        so_far = f"{waited_s:.0f}s" if waited_s < 60 else format_duration(waited_s)  # noqa: PLR2004 - a minute
        line = waits_in_brief(job, self._found, so_far)
        self._show(in_words(line, max(1, width)))  # a wrapped line could not be cleared

    def _ask(self, job: Job, now: float) -> None:
        self._asked_s = now
        with contextlib.suppress(GpuQueueError):  # the explanation is optional
            self._found = self._client.jobs.why(job.id)
