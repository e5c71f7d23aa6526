"""The terminal of a running job, for a user who types on it: here on this machine, or behind a service."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from gpuqueue.system.terminal_socket import TerminalSocket

if TYPE_CHECKING:
    from pathlib import Path

    from gpuqueue.client.log_places import Tail
    from gpuqueue.model.terminal_size import Window


class JobTerminal(Protocol):
    """The terminal of one run. Keys that are sent after the run's end are lost."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`output` may have more to return."""

    def type(self, typed: bytes) -> None:
        """Send typed input to the job."""

    def resize(self, window: Window) -> None:
        """Send the size of the user's terminal to the job."""

    def output(self) -> tuple[Sequence[bytes], bool]:
        """Return the output since the last call, and whether the run has ended."""

    def close(self) -> None:
        """Leave the terminal. The job runs on."""


class LocalTerminal:
    """The terminal of a run on this machine, whose log *tail* reads."""

    def __init__(self, log: Path, tail: Tail) -> None:
        """Connect to the terminal. Raises OSError as :class:`TerminalSocket` does."""
        self._line = TerminalSocket(log)
        self._tail = tail

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`output` may have more to return."""
        return self._line.fileno()

    def type(self, typed: bytes) -> None:
        """Send typed input to the job."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the run has ended
            self._line.type(typed)

    def resize(self, window: Window) -> None:
        """Send the size of the user's terminal to the job."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the run has ended
            self._line.resize(window)

    def output(self) -> tuple[Sequence[bytes], bool]:
        """Return the output since the last call, and whether the run has ended."""
        has_ended = self._line.has_ended()  # before the log is read, so that no output before the end is missed
        return list(self._tail.rest()), has_ended

    def close(self) -> None:
        """Leave the terminal. The job runs on."""
        self._line.close()
