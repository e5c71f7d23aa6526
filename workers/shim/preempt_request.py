"""The file that requests the preemption of a run. The job can read it too. Standard library only."""

from __future__ import annotations

import json
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: The file in the run directory.
NAME = "preempt.json"
NEVER = float("inf")
#: Set in a pilot, as gpuqueue/system/process.py says. There an engine ends an allocation by a SIGTERM to each process.
SHIELDED = "_GPUQUEUE_SHIELDED"
#: How much later than the job the shim may get that signal, in seconds.
ENGINE_S = 0.3


class PreemptRequest:
    """A preemption request.

    ``until_s`` is when the run must have ended, on the host's monotonic clock, in seconds; infinite while there is no
    request. ``by`` is the id of the job that preempts the run, 0 at the end of its host's time. *grace_s* applies if
    the file cannot be parsed, and to the SIGTERM of an engine.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self.until_s = NEVER
        self.by = ""
        #: Whether SIGTERM was sent to all of the job's processes.
        self.signalled = False

    def poll(self, read: Callable[[str], str | None]) -> bool:
        """Return whether the run is being preempted; *read* returns the text of a file, None if it is missing."""
        text = read(NAME) if self.until_s == NEVER else None
        if text is not None:
            try:
                plain = json.loads(text)
                self.until_s, self.by = float(plain["until_s"]), str(int(plain["by"]))
            except (ValueError, KeyError, TypeError):
                self.until_s = time.monotonic() + self._grace_s
        return self.until_s < NEVER

    def woken(self, by: signal.struct_siginfo | None) -> None:
        """Take a SIGTERM of an engine, which goes to all processes, for a request: the time of this host is over."""
        if by is None or by.si_signo != signal.SIGTERM or SHIELDED not in os.environ:
            return
        if self.until_s == NEVER:
            self.until_s, self.by = time.monotonic() + self._grace_s, "0"
        self.signalled = True

    def has_ended(self, status: int | None) -> bool:
        """Return whether the job, which ended by itself with *status*, did so because it was asked to."""
        if status == 0:
            return False
        if SHIELDED in os.environ:  # the signal may reach the shim a little later than the job
            self.woken(signal.sigtimedwait({signal.SIGTERM}, ENGINE_S))
        return self.signalled

    def left_s(self) -> float:
        """Return how many seconds the job has left to end by itself."""
        return max(0.0, self.until_s - time.monotonic())
