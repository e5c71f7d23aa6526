"""The worker's end of :mod:`workers.shim.forkserver`: how it comes to a shim for a run."""

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
#: How long a fork may take on a busy host, in seconds. What does not answer by then is ended.
ANSWER_S = 30.0
#: What a shim that is gone has said is there at once; a fork server that was stopped in that moment holds the end open.
SAID_S = 1.0
#: Longest answer, in bytes: a number.
MOST_BYTES = 64


class Unanswered(Exception):
    """Nobody said whether there is a shim; who is sure to be gone is the fork server. The run's lock tells."""


class Shim:
    """A shim that was started by this worker, which is not its parent: it waits by the pidfd *handle*."""

    def __init__(self, pid: int, handle: int, told: int) -> None:
        self.pid = pid
        #: Readable once it has ended. Whoever waits for that closes it.
        self.handle = handle
        self._told = told

    def code(self) -> int | None:
        """Return its exit code once it has ended, None if it was killed before it could say."""
        poll = select.poll()
        poll.register(self._told, select.POLLIN)
        said = os.read(self._told, 1) if poll.poll(SAID_S * 1000) else b""
        return said[0] if said else None

    def close(self) -> None:
        """Let go of what it has told."""
        os.close(self._told)


class Shims:
    """Starts shims for one worker, and looks after the process that forks them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def prepare(self) -> None:
        """Let the first run find everything ready; where that cannot be done now it is tried again with the run."""
        with self._lock, contextlib.suppress(OSError):
            self._connected()

    def start(self, run_dir: Path, lock: int) -> Shim:
        """Start the shim of *run_dir*, whose lock is held by the open file *lock*: the shim has it from then on.

        Raises:
            OSError: it could not be made, for want of something that the host must give.
            Unanswered: perhaps there is one.

        """
        return self._started(os.fsencode(run_dir), lock)

    def start_waiting(self, channel: int) -> Shim:
        """Start a shim that waits for a run at the other end of the socket *channel* (:mod:`workers.shim.warm`).

        Raises:
            OSError: it could not be made.
            Unanswered: perhaps there is one; it ends with the socket.

        """
        return self._started(IN_WAITING, channel)

    def _started(self, request: bytes, given: int) -> Shim:
        with self._lock:
            told, tell = os.pipe()
            try:
                pid, handle = self._ask(request, [given, tell])
            except BaseException:
                os.close(told)
                raise
            finally:
                os.close(tell)
            return Shim(pid, handle, told)

    def close(self) -> None:
        """Let the fork server go; the shims stay."""
        with self._lock:
            self._disconnect()

    def _ask(self, request: bytes, fds: list[int]) -> tuple[int, int]:
        try:
            socket.send_fds(self._connected(), [request], fds)
        except ConnectionError:  # it was killed since; that is told before anything arrives
            self._disconnect()
            socket.send_fds(self._connected(), [request], fds)
        said, handles = self._reply()
        if said.startswith(b"-"):
            raise OSError(int(said[1:]), os.strerror(int(said[1:])))
        if not handles:
            self._disconnect()
            raise Unanswered("the process that starts shims gave no answer")
        return int(said), handles[0]

    def _reply(self) -> tuple[bytes, list[int]]:
        """Return the shim's pid with its pidfd, or minus the number of an error; nothing where nobody answers."""
        connected = self._connected()
        poll = select.poll()
        poll.register(connected, select.POLLIN)
        with contextlib.suppress(OSError):
            if poll.poll(ANSWER_S * 1000):
                return socket.recv_fds(connected, MOST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)[:2]
        return b"", []

    def _connected(self) -> socket.socket:
        """Return the way to a fork server, a new one if need be.

        Raises:
            OSError: none can be started.

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
        """End the fork server. When it is collected, whatever it held is free: the locks of runs, too."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._server is not None:
            self._server.send_signal(signal.SIGKILL)  # it has nothing to lose
            self._server.wait()
            self._server = None
