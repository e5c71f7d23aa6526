"""The line that tells whoever waits for a job why it waits, and for how long already."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from datetime import datetime, timezone

from gpuqueue.cli.output.terminal_width import is_dumb
from gpuqueue.client import Client
from gpuqueue.console import say
from gpuqueue.errors import GpuQueueError
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.text.sanitize import in_words
from gpuqueue.text.units import format_duration

#: A job that starts within this time has not waited, in seconds.
PATIENCE_S = 1.0
#: Time between two questions to the store about the reasons, in seconds: what they cost is for the few who look.
ASK_S = 5.0
#: Time between two times that the line is written anew, in seconds.
WRITE_S = 1.0
#: Columns that are left free behind it: for the cursor, and for the ^C that a terminal shows there.
BESIDE = 3
#: Back to the beginning of the line, and away with what stands there.
CLEAR = "\r\x1b[K"

WORDS = {
    WaitReason.MEMORY: "for memory",
    WaitReason.DEVICE: "for a device that serves it",
    WaitReason.SLOTS: "for a free slot on a device",
    WaitReason.RESERVATION: "for a device that is kept for another job",
    WaitReason.DRAINED: "for a device that is not drained",
    WaitReason.SILENT: "for a worker that was not heard for a while",
    WaitReason.LIMIT: "for room under a limit",
    WaitReason.DEPENDENCY: "for other jobs to end",
    WaitReason.BEGIN: "for its time",
    WaitReason.ARRAY_LIMIT: "for another member to end",
    WaitReason.RETRY: "for its retry",
    WaitReason.REQUEUE: "to be run again, as its last run asked",
    WaitReason.PAUSE: "for the queue, which was rebuilt",
    WaitReason.HELD: "for a person",
    WaitReason.LOST_TOO_OFTEN: "for a person",
    WaitReason.REQUEUED_TOO_OFTEN: "for a person",
}


class WaitLine:
    """Says on stderr why a job waits: in one line that is written anew on a terminal, by a line a change in a pipe."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_terminal = sys.stderr.isatty() and not is_dumb()
        self._began_s = time.monotonic()
        self._asked_s = self._wrote_s = float("-inf")
        self._why = self._told = ""
        self._stands = False

    def seen(self, job: Job) -> None:
        """Take note of how the job stands now."""
        now = time.monotonic()
        if job.state is not JobState.QUEUED:
            self.clear()
            self._told = ""
            self._began_s = now
        elif now - self._began_s >= PATIENCE_S and now - self._wrote_s >= WRITE_S:
            self._wrote_s = now
            self._write(job, now)

    def clear(self) -> None:
        """Make room for other output."""
        if self._stands:
            self._put(CLEAR)
            self._stands = False

    def _write(self, job: Job, now: float) -> None:
        reason = f"job {job.id} waits {WORDS[job.reason] if job.reason else ''}".rstrip()
        if not self._is_terminal:
            if reason != self._told:
                self._told = reason
                self._ask(job, now)
                say("gpuqueue", self._line(reason))
            return
        if now - self._asked_s >= ASK_S:
            self._ask(job, now)
        waited_s = max(0.0, (datetime.now(timezone.utc) - job.submitted_at).total_seconds())
        width = shutil.get_terminal_size().columns - BESIDE
        so_far = f"{waited_s:.0f}s" if waited_s < 60 else format_duration(waited_s)  # noqa: PLR2004 - a minute
        line = self._line(f"{reason}, {so_far} so far")
        self._put(CLEAR + in_words(line, max(1, width)))  # a line that breaks could not be taken off whole
        self._stands = True

    @staticmethod
    def _put(text: str) -> None:
        """Write to the terminal itself: without colour, click would leave out what clears the line as well."""
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()

    def _ask(self, job: Job, now: float) -> None:
        from gpuqueue.cli.why.story import in_brief  # noqa: PLC0415 - most jobs start at once

        self._asked_s = now
        with contextlib.suppress(GpuQueueError):  # the reason is known without it
            self._why = in_brief(self._client.why(job.id))

    def _line(self, words: str) -> str:
        return f"{words}; {self._why}" if self._why else words
