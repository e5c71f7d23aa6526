"""The worker's client of :mod:`workers.shim.forkserver`. It gives each run a shim that waits for one."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from workers.shim.forkserver import SHIM
from workers.shim.warm import received

FORKSERVER = Path(__file__).with_name("forkserver.py")
#: How long a fork may take on a busy host, in seconds. A fork server that has not answered by then is killed.
ANSWER_S = 30.0
#: How long to wait for the exit code of a shim that has ended, in seconds. The code is normally there at once. A fork
#: server that is stopped right after the fork still has the shim's end of the socket open, so a read could block.
CODE_S = 1.0
#: Longest answer of the fork server, in bytes. The answer is one number.
MOST_BYTES = 64


class Shim:
    """A shim of this worker, which waits until it gets a run over the socket *channel*.

    The worker is not its parent, so it waits on the pidfd *handle*.
    """

    def __init__(self, pid: int, handle: int, channel: socket.socket) -> None:
        self.pid = pid
        #: The shim's pidfd, readable once the shim has ended. The code that waits on it closes it.
        self.handle = handle
        self.channel = channel

    def give(self, run_dir: Path, lock: int) -> None:
        """Give the shim the run of *run_dir*. The run's lock, which the open file *lock* holds, travels with it.

        If the shim ends before it has read that, the kernel closes its copy of the lock.

        Raises:
            OSError: the shim has ended. It has got neither run nor lock.

        """
        socket.send_fds(self.channel, [os.fsencode(run_dir)], [lock])

    def code(self) -> int | None:
        """Return the exit code of a shim that has ended, or None if it was killed before it could send one."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        while poll.poll(CODE_S * 1000):
            message = received(self.channel)[0]
            if len(message) <= 1:  # longer ones are about a warm interpreter
                return message[0] if message else None
        return None

    def close(self) -> None:
        """Close the socket."""
        self.channel.close()

    def end(self) -> None:
        """End a shim that has no run, by closing its socket and the pidfd."""
        self.close()
        os.close(self.handle)


class Shims:
    """Starts shims for one worker, and owns the fork server that forks them. One shim waits for the next run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        #: The socket to the shim that was requested last. The fork server's answer is not read yet.
        self._next: socket.socket | None = None

    def prepare(self) -> None:
        """Start the fork server and the first shim in advance. If that fails, the first run tries again."""
        with self._lock, contextlib.suppress(OSError):
            self._next = self._next or self._requested()

    def start(self, run_dir: Path, lock: int) -> Shim:
        """Give the run of *run_dir* to the shim that waits. The shim gets the run's lock, which the file *lock* holds.

        Raises:
            OSError: no shim could be started, because the host lacks a resource. None has the lock.

        """
        with self._lock:
            try:
                shim = self._given(run_dir, lock)
            except OSError:  # the waiting shim or the fork server was killed
                shim = self._given(run_dir, lock)
            with contextlib.suppress(OSError):  # then the next start tries again
                self._next = self._requested()
            return shim

    def start_warm(self, plan: bytes) -> Shim:
        """Start a shim with the warm interpreter of *plan* (:mod:`workers.shim.warm`).

        Raises:
            OSError: the shim could not be started.

        """
        with self._lock:
            shim = self._waiting()
            try:
                shim.channel.send(plan)
            except OSError:
                shim.end()
                raise
            return shim

    def close(self) -> None:
        """End the fork server and the waiting shim. The shims of runs go on."""
        with self._lock:
            self._disconnect()

    def _given(self, run_dir: Path, lock: int) -> Shim:
        shim = self._waiting()
        try:
            shim.give(run_dir, lock)
        except OSError:
            shim.end()
            raise
        return shim

    def _requested(self) -> socket.socket:
        """Ask the fork server for a shim, and return the socket to it without waiting for the answer.

        Raises:
            OSError: the host lacks a resource.

        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                try:
                    socket.send_fds(self._connected(), [SHIM], [theirs.fileno()])
                except ConnectionError:  # the fork server was killed earlier
                    self._disconnect()
                    socket.send_fds(self._connected(), [SHIM], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return ours

    def _waiting(self) -> Shim:
        """Return the shim that was requested last, or a new one.

        Raises:
            OSError: there is none, because the host lacks a resource, or the fork server was killed or is stopped.

        """
        channel, self._next = self._next or self._requested(), None
        answer, handles = self._reply()
        if handles:
            return Shim(int(answer), handles[0], channel)
        channel.close()  # the shim ends, if there is one
        if not answer.startswith(b"-"):
            self._disconnect()
            raise OSError(errno.EAGAIN, "the process that starts shims gave no answer")
        raise OSError(-int(answer), os.strerror(-int(answer)))

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
            words = [sys.executable, "-I", "-S", "-X", "utf8", str(FORKSERVER)]
            self._server, ours = start_connected(words, subprocess.DEVNULL)
            self._socket = ours
        return self._socket

    def _disconnect(self) -> None:
        """Kill the fork server and wait for it, and end the shim that waits."""
        if self._next is not None:
            self._next.close()
            self._next = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._server is not None:
            self._server.send_signal(signal.SIGKILL)  # it has no state to save
            self._server.wait()
            self._server = None


def start_connected(words: Sequence[str], output: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process in a session of its own, connected to this one by a socket.

    Its last word is the number of its end. It inherits nothing else, and writes to the open file *output*.

    Raises:
        OSError: the process cannot be started.

    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        process = subprocess.Popen(
            [*words, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours
