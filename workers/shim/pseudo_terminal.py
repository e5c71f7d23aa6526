"""The terminal of a job that wants one, and the way from there into its log. Standard library only: it is the shim's.

The job's standard output and error are the terminal, which is also its controlling one; what it writes there is copied
into the log byte by byte, by a thread, for as long as somebody holds the terminal. Nobody types on it: standard input
stays empty. One that people type on is in :mod:`workers.shim.attached_terminal`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
import threading

#: Most that is copied at once, in bytes.
CHUNK_BYTES = 65536
#: How long the last bytes may take once all processes are gone, in seconds: the log may lie on a disk in trouble.
DRAIN_S = 5.0


class Terminal:
    """A pseudo-terminal of *columns* by *rows*; what is written there goes into the file *log*.

    One that *echoes* is as the kernel makes it; of any other the log holds just what the job writes.
    """

    def __init__(self, log: int, columns: int, rows: int, *, echoes: bool = False) -> None:
        """Make it.

        Raises:
            OSError: the host has no terminal, or no descriptor, to give.

        """
        self.log = log
        self._ours, self._theirs = os.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if not echoes:
            settings = termios.tcgetattr(self._theirs)
            settings[1] &= ~termios.OPOST  # no carriage return before each line's end
            settings[3] &= ~termios.ECHO
            termios.tcsetattr(self._theirs, termios.TCSANOW, settings)
        self._copier: threading.Thread | None = None

    def take(self) -> None:
        """Make it the standard output and error, and the controlling terminal, of this process: a session's leader."""
        fcntl.ioctl(self._theirs, termios.TIOCSCTTY, 0)
        os.dup2(self._theirs, 1)
        os.dup2(self._theirs, 2)

    def begin(self) -> None:
        """Leave it to the job, and copy what that writes from now on."""
        os.close(self._theirs)
        self._copier = threading.Thread(target=self._copy, name="gpuqueue-pty", daemon=True)
        self._copier.start()

    def _copy(self) -> None:
        while True:
            try:
                some = os.read(self._ours, CHUNK_BYTES)
            except OSError:  # EIO: nobody holds the terminal any more
                break
            if not some:
                break
            self._keep(some)
        os.close(self.log)

    def _keep(self, some: bytes) -> None:
        """Write it into the log."""
        left = memoryview(some)
        with contextlib.suppress(OSError):  # on a full disk the job goes on, and what it says is gone
            while left:
                left = left[os.write(self.log, left) :]

    def drain(self) -> None:
        """Wait until what was written is in the log. All that could write must be gone."""
        if self._copier is not None:
            self._copier.join(DRAIN_S)
