"""The pseudo-terminal of a job that wants one, and the copy of its output to the log. Runs in the shim.

The terminal is the job's standard output, its standard error and its controlling terminal. A thread copies the output
unchanged into the log for as long as any process has the terminal open. Standard input is empty; the terminal that
accepts typed input is in :mod:`workers.shim.attached_terminal`. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
import threading

#: Most bytes that are copied at once.
CHUNK_BYTES = 65536
#: How long the copy of the last bytes may take after all processes are gone, in seconds. The disk of the log may hang.
DRAIN_S = 5.0


class Terminal:
    """A pseudo-terminal of *columns* by *rows* whose output goes into the file *log*.

    With *echoes* the terminal keeps the kernel's default settings. Without it, echo and output processing are off, so
    that the log holds exactly what the job writes.
    """

    def __init__(self, log: int, columns: int, rows: int, *, echoes: bool = False) -> None:
        """Create the terminal.

        Raises:
            OSError: the host has no free pseudo-terminal or no free file descriptor.

        """
        self.log = log
        self._ours, self._theirs = os.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if not echoes:
            settings = termios.tcgetattr(self._theirs)
            settings[1] &= ~termios.OPOST  # no carriage return before each line feed
            settings[3] &= ~termios.ECHO
            termios.tcsetattr(self._theirs, termios.TCSANOW, settings)
        self._copier: threading.Thread | None = None

    def take(self) -> None:
        """Make it the output, error and controlling terminal of this process, which must be a session leader."""
        fcntl.ioctl(self._theirs, termios.TIOCSCTTY, 0)
        os.dup2(self._theirs, 1)
        os.dup2(self._theirs, 2)

    def descriptors(self) -> list[int]:
        """Return the descriptors of the job's output: its end of the terminal."""
        return [self._theirs]

    def begin(self) -> None:
        """Close the job's end of the terminal in this process, and start to copy the output to the log."""
        os.close(self._theirs)
        self._copier = threading.Thread(target=self._copy, name="gpuqueue-pty", daemon=True)
        self._copier.start()

    def _copy(self) -> None:
        while True:
            try:
                some = os.read(self._ours, CHUNK_BYTES)
            except OSError:  # EIO: no process has the terminal open
                break
            if not some:
                break
            self._write_log(some)
        os.close(self.log)

    def _write_log(self, some: bytes) -> None:
        """Write *some* into the log."""
        left = memoryview(some)
        with contextlib.suppress(OSError):  # on a full disk the job goes on and this output is lost
            while left:
                left = left[os.write(self.log, left) :]

    def drain(self) -> None:
        """Wait until the output is in the log. All processes that could write must be gone."""
        if self._copier is not None:
            self._copier.join(DRAIN_S)
