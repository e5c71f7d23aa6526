"""The worker's client of :mod:`workers.shim.forkserver`. It starts one shim for each run."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from workers.shim.forkserver import IN_WAITING

FORKSERVER = Path(__file__).with_name("forkserver.py")
#: How long a fork may take on a busy host, in seconds. A fork server that has not answered by then is killed.
ANSWER_S = 30.0
#: How long to wait for the exit code of a shim that has ended, in seconds. The code is normally there at once. A fork
#: server that is stopped right after the fork still has the write end of the pipe open, so a read could block.
CODE_S = 1.0
#: Longest answer of the fork server, in bytes. The answer is one number.
MOST_BYTES = 64


class Unanswered(Exception):
    """The fork server gave no answer and was killed. The run's lock shows whether a shim exists."""


class Shim:
    """A shim that this worker started. The worker is not its parent, so it waits on the pidfd *handle*."""

    def __init__(self, pid: int, handle: int, code_pipe: int) -> None:
        self.pid = pid
        #: The shim's pidfd, readable once the shim has ended. The code that waits on it closes it.
        self.handle = handle
        self._code_pipe = code_pipe

    def code(self) -> int | None:
        """Return the exit code of a shim that has ended, or None if it was killed before it could write one."""
        poll = select.poll()
        poll.register(self._code_pipe, select.POLLIN)
        code = os.read(self._code_pipe, 1) if poll.poll(CODE_S * 1000) else b""
        return code[0] if code else None

    def close(self) -> None:
        """Close the pipe that carries the exit code."""
        os.close(self._code_pipe)


class Shims:
    """Starts shims for one worker, and owns the fork server that forks them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def prepare(self) -> None:
        """Start the fork server in advance. If that fails, the first run tries again."""
        with self._lock, contextlib.suppress(OSError):
            self._connected()

    def start(self, run_dir: Path, lock: int) -> Shim:
        """Start the shim of *run_dir*. The shim inherits the run's lock, which the open file *lock* holds.

        Raises:
            OSError: the shim could not be started, because the host lacks a resource.
            Unanswered: it is unknown whether the shim was started.

        """
        return self._started(os.fsencode(run_dir), lock)

    def start_waiting(self, channel: int) -> Shim:
        """Start a shim that waits for a run at the other end of the socket *channel* (:mod:`workers.shim.warm`).

        Raises:
            OSError: the shim could not be started.
            Unanswered: it is unknown whether the shim was started. It ends when the socket is closed.

        """
        return self._started(IN_WAITING, channel)

    def _started(self, request: bytes, given: int) -> Shim:
        with self._lock:
            code_pipe, theirs = os.pipe()
            try:
                pid, handle = self._ask(request, [given, theirs])
            except BaseException:
                os.close(code_pipe)
                raise
            finally:
                os.close(theirs)
            return Shim(pid, handle, code_pipe)

    def close(self) -> None:
        """End the fork server. The shims keep running."""
        with self._lock:
            self._disconnect()

    def _ask(self, request: bytes, fds: list[int]) -> tuple[int, int]:
        try:
            socket.send_fds(self._connected(), [request], fds)
        except ConnectionError:  # the fork server was killed earlier, and has not received the request
            self._disconnect()
            socket.send_fds(self._connected(), [request], fds)
        answer, handles = self._reply()
        if answer.startswith(b"-"):
            raise OSError(-int(answer), os.strerror(-int(answer)))
        if not handles:
            self._disconnect()
            raise Unanswered("the process that starts shims gave no answer")
        return int(answer), handles[0]

    def _reply(self) -> tuple[bytes, list[int]]:
        """Return the shim's pid and its pidfd, or a negative errno and no pidfd; empty values if there is no answer."""
        connected = self._connected()
        poll = select.poll()
        poll.register(connected, select.POLLIN)
        with contextlib.suppress(OSError):
            if poll.poll(ANSWER_S * 1000):
                return socket.recv_fds(connected, MOST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)[:2]
        return b"", []

    def _connected(self) -> socket.socket:
        """Return the socket to the fork server, and start a fork server if none is connected.

        Raises:
            OSError: the fork server cannot be started.

        """
        if self._socket is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                self._server = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-X", "utf8", str(FORKSERVER), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._socket = ours
        return self._socket

    def _disconnect(self) -> None:
        """Kill the fork server and wait for it. After that it holds no descriptor, and so no run's lock."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._server is not None:
            self._server.send_signal(signal.SIGKILL)  # it has no state to save
            self._server.wait()
            self._server = None
