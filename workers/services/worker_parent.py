"""The workers' parent: a process that has loaded the modules of a worker once, and forks each worker of a host.

It opens nothing before a fork: no driver, no connection, no file, no thread. So each worker is as one that was started
by itself, and all of them share the memory of the modules. The host process owns it, and asks for a worker with one
message: the words of ``gpuqueue-worker``, the log, and a socket that belongs to this worker. Over that socket the
parent sends the worker's pid with its pidfd, and at its end the exit code.

A worker ends in order when its parent is gone (option ``--parent``), and the parent when the host process is gone. If
the parent is killed, the host process starts another one with all workers, which take over the running jobs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from gpuqueue.system.process import installed, shield
from workers.inside import proc_files
from workers.shim.client import start_connected

#: Longest message: the words of a worker, or a pid or an exit code.
MAX_BYTES = 4096
#: How long a new parent and a fork may take on a busy host, in seconds. A parent that takes longer is killed.
FORK_S = 60.0
#: How long to wait for the exit code of a worker that has ended, in seconds. A parent that is not stopped sends it at
#: once.
CODE_S = 1.0
#: Exit code of a worker that was not forked.
NOT_FORKED = 1


class WorkerParent:
    """Starts workers through their parent, and owns that process. For one thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self, words: Sequence[str], log: int) -> ForkedWorker:
        """Start ``gpuqueue-worker`` with *words*. Return before it is forked.

        Its output goes to the open file *log*. If there is no parent, one is started, with its output in the same file.

        Raises:
            OSError: the host lacks a resource, or the parent does not read its messages.

        """
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            message, fds = [json.dumps(words).encode()], [log, theirs.fileno()]
            try:
                socket.send_fds(self._connected(log), message, fds)
            except ConnectionError:  # the parent was killed
                self.close()
                socket.send_fds(self._connected(log), message, fds)
        except BaseException:
            channel.close()
            raise
        finally:
            theirs.close()
        return ForkedWorker(channel, self.close)

    def close(self) -> None:
        """Kill the parent, which has no state to save. Workers that are left end in order."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _connected(self, log: int) -> socket.socket:
        if self._socket is None:
            self._process, ours = start_connected([installed("gpuqueue-worker"), "parent"], log)
            ours.setblocking(False)
            self._socket = ours
        return self._socket


class ForkedWorker:
    """A worker that its parent forks, with the methods of a ``Popen``. It may be forked a while later."""

    def __init__(self, channel: socket.socket, give_up: Callable[[], None]) -> None:
        """Watch the worker at the other end of *channel*. Call *give_up* if its parent does not fork it in time."""
        channel.setblocking(False)
        self._channel = channel
        self._give_up = give_up
        self._fork_until_s = time.monotonic() + FORK_S
        self._pidfd: int | None = None
        #: 0 until it is forked.
        self.pid = 0
        #: The exit code, negative for a signal. A worker whose parent was killed counts as killed, too.
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs or is not forked yet."""
        if self.returncode is None and self._is_forked() and _is_readable(self._pidfd, 0.0):
            _is_readable(self._channel.fileno(), CODE_S)
            message, _ = self._received()
            self._end(int(message) if message else -signal.SIGKILL)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after *timeout* seconds.

        """
        until_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired("gpuqueue-worker", timeout)
            _is_readable(self._channel.fileno() if self._pidfd is None else self._pidfd, left_s)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal. A worker that is not forked yet will not be, or is killed at once."""
        if self.poll() is None and self._pidfd is None:
            self._end(-number)
        elif self._pidfd is not None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _is_forked(self) -> bool:
        if self._pidfd is None:
            try:
                message, fds = self._received()
            except BlockingIOError:
                if time.monotonic() > self._fork_until_s:
                    self._give_up()
                return False
            if not fds:  # the parent could not fork it, or has ended
                self._end(NOT_FORKED)
                return False
            self.pid, self._pidfd = int(message), fds[0]
        return True

    def _received(self) -> tuple[bytes, list[int]]:
        """Return the next message of the parent, an empty one if it has closed the channel.

        Raises:
            BlockingIOError: there is none yet.

        """
        try:
            return socket.recv_fds(self._channel, MAX_BYTES, 1, socket.MSG_CMSG_CLOEXEC)[:2]
        except ConnectionError:
            return b"", []

    def _end(self, code: int) -> None:
        self.returncode = code
        self._channel.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _is_readable(fd: int | None, limit_s: float) -> bool:
    """Wait until *fd* is readable, at most *limit_s* seconds, and return whether it is."""
    poll = select.poll()
    poll.register(-1 if fd is None else fd, select.POLLIN)
    return bool(poll.poll(limit_s * 1000))


# ---- in the parent ---------------------------------------------------------------------------------------------------


def serve(fd: int) -> bool:
    """Fork a worker for each request over the socket *fd*. Return True in a worker, and False if nobody asks any more.

    In a worker this returns with the state of a process that was started with its words: its command line, its log, a
    session of its own, the usual signals.
    """
    shield()
    os.set_inheritable(fd, False)
    gc.collect()
    gc.freeze()  # keeps the loaded objects in pages that all workers share
    with socket.socket(fileno=fd) as host:
        return _Forks(host).serve()


class _Forks:
    """The workers that this process has forked, by their pidfds: pid and channel."""

    def __init__(self, host: socket.socket) -> None:
        self._host = host
        self._pid = os.getpid()
        self._forks: dict[int, tuple[int, socket.socket]] = {}
        self._poll = select.poll()
        self._poll.register(host, select.POLLIN)

    def serve(self) -> bool:
        while True:
            for ready, _ in self._poll.poll():
                if ready in self._forks:
                    self._report_end(ready)
                    continue
                message, fds, _, _ = socket.recv_fds(self._host, MAX_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
                if not message:
                    return False
                if len(fds) < 2:  # noqa: PLR2004 - this process had no free descriptors: the channel is closed
                    continue
                log, channel = fds[0], socket.socket(fileno=fds[1])
                if self._fork(log, channel) == 0:
                    self._become(log, channel, json.loads(message))
                    return True
                os.close(log)

    def _fork(self, log: int, channel: socket.socket) -> int | None:
        """Fork, and return the pid, 0 in the worker, or None if the host lacks a resource."""
        try:
            pid = os.fork()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(log, f"gpuqueue-worker: the worker cannot be forked: {error.strerror}\n".encode())
            channel.close()
            return None
        if pid == 0:
            return 0
        pidfd = os.pidfd_open(pid)
        self._forks[pidfd] = pid, channel
        self._poll.register(pidfd, select.POLLIN)
        try:
            socket.send_fds(channel, [str(pid).encode()], [pidfd])
        except OSError:  # nobody waits for it any more
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return pid

    def _become(self, log: int, channel: socket.socket, words: list[str]) -> None:
        """Become a process that was started as ``gpuqueue-worker`` with *words*."""
        os.setsid()
        for fd in (1, 2):
            os.dup2(log, fd)
        os.close(log)
        channel.close()
        for pidfd, (_, other) in self._forks.items():
            os.close(pidfd)
            other.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        words = [*words, "--parent", str(self._pid)]
        proc_files.show_command([*sys.orig_argv[: sys.orig_argv.index("parent")], *words])
        sys.argv = [sys.argv[0], *words]

    def _report_end(self, pidfd: int) -> None:
        """Reap a worker that has ended, and send its exit code."""
        pid, channel = self._forks.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError), channel:
            channel.send(str(code).encode())
