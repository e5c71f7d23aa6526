"""The socket in a run directory by which a client types on the terminal of a job.

The other end is the shim. workers/shim/attached_terminal.py describes the frames.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from pathlib import Path

from gpuqueue.model.terminal_size import Window
from gpuqueue.system.logs import TTY

#: Most bytes of one frame.
MOST_BYTES = 0xFFFF


def typed_frames(typed: bytes) -> bytes:
    """Return *typed* input as frames."""
    parts = (typed[begin : begin + MOST_BYTES] for begin in range(0, len(typed), MOST_BYTES))
    return b"".join(_frame(b"I", part) for part in parts)


def size_frame(window: Window) -> bytes:
    """Return the size of a client's terminal as a frame."""
    return _frame(b"W", struct.pack("!HH", window.columns, window.rows))


def _frame(kind: bytes, rest: bytes) -> bytes:
    return struct.pack("!cH", kind, len(rest)) + rest


def connected(run_dir: Path, name: str) -> socket.socket:
    """Return a connection to the socket *name* in the run directory.

    Raises:
        FileNotFoundError, ConnectionRefusedError: the run has no such socket, or has ended.
        OSError: it cannot be opened, or belongs to another account.

    """
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = -1
    try:  # by a short path: the length of a socket address is limited
        folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        line.connect(f"/proc/self/fd/{folder}/{name}")
        if _listener(line) != os.fstat(folder).st_uid:
            # A link to a socket of another account: what an administrator types must not reach it.
            raise PermissionError(errno.EPERM, "the socket of the run belongs to another account")
    except OSError:
        line.close()
        raise
    finally:
        if folder >= 0:
            os.close(folder)
    return line


class TerminalSocket:
    """A connection to the terminal of the run whose log is at *log*.

    With *unread_s*, what is sent raises BlockingIOError if the job does not read its input for so many seconds. The
    connection cannot be used after that.

    Raises:
        FileNotFoundError, ConnectionRefusedError: the run has no such terminal, or has ended.
        OSError: the terminal cannot be opened, or belongs to another account.

    """

    def __init__(self, log: Path, *, unread_s: float | None = None) -> None:
        self._line = connected(log.parent, TTY)
        if unread_s is not None:  # not settimeout(), which would also apply to has_ended()
            limit = struct.pack("ll", int(unread_s), int(unread_s % 1 * 1e6))
            self._line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def fileno(self) -> int:
        """Return the descriptor. It is readable when the log has grown, and when the run has ended."""
        return self._line.fileno()

    def type(self, typed: bytes) -> None:
        """Send typed input. Raises OSError if the run has ended."""
        self.send(typed_frames(typed))

    def resize(self, window: Window) -> None:
        """Send the size of the client's terminal. Raises OSError if the run has ended."""
        self.send(size_frame(window))

    def send(self, frames: bytes) -> None:
        """Send whole frames, or parts of them that follow each other. Raises OSError if the run has ended."""
        self._line.sendall(frames)

    def wait(self, timeout_s: float) -> None:
        """Wait until the log has grown or the run has ended, at most *timeout_s* seconds."""
        select.select([self._line], [], [], timeout_s)

    def has_ended(self) -> bool:
        """Return whether the run has ended, and forget that the log has grown."""
        try:
            return not self._line.recv(MOST_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Close the connection. The terminal stays open."""
        self._line.close()


def _listener(line: socket.socket) -> int:
    """Return the uid of the process that listens on the other end of a connected unix socket."""
    _, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)
