"""The process tree of a run whose job runs as its submitter. Runs in the shim. Standard library only.

The shim belongs to the account of the workers, so the launcher starts the job for it. The run's guard, a process of the
launcher, is the parent of the job's processes; the shim asks it to signal them and learns from it how they end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import time

from workers.shim import code
from workers.shim.launch_protocol import (
    GREETING,
    MOST_BYTES,
    PACK,
    PORT,
    REMOVE,
    START,
    SWEEP,
    TOKEN,
    run_name,
    wake_on,
)
from workers.shim.not_started import TOO_LATE, NotStarted, no_start
from workers.shim.tree import UNKILLABLE_S, Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from workers.shim.pseudo_terminal import Terminal
    from workers.shim.start import LogFile

#: How long the launcher may take to answer, in seconds, and the pause before it is asked again for a sweep.
ANSWER_S = 30.0
AGAIN_S = 1.0


class LaunchedTree(Tree):
    """The processes of a run below its guard. ``root`` is its pid, ``guard`` the connection to it."""

    def __init__(self, pid: int, root: int, guard: socket.socket, launcher: str, token: str) -> None:
        super().__init__(pid)
        self.root = root
        self.guard = guard
        self._launcher = launcher
        self._token = token
        self._usage: tuple[int | None, float] = (None, 0.0)
        self._over = False
        wake_on(guard)

    def reap(self) -> bool:
        """Read the messages of the guard; return whether any process is left."""
        while not self._over:
            try:
                message = self.guard.recv(MOST_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except ConnectionResetError:  # once: the guard left with a message of ours unread. Its own are still here.
                continue
            except OSError:
                message = b""
            word, _, rest = message.partition(b" ")
            numbers = rest.split()
            if word == b"ended":
                self.cause = rest.partition(b" ")[2].decode(errors="replace")
                self.status = int(numbers[0])
            elif word == b"left":
                self.notes = json.loads(rest)
            elif word == b"gone":
                self._usage = int(numbers[0]) * 1024, float(numbers[1])
                self._over = True
            elif not word:
                self._over = True
                self.lost = "the process that guards it was killed"
        return False

    def send(self, number: int) -> bool:
        """Send a signal to every process of the run; return False if the guard cannot be asked now."""
        return self._ask(b"signal %d" % number)

    def send_job(self, number: int) -> bool:
        """Send a signal to every process of the run: the guard does not distinguish them."""
        return self.send(number)

    def send_first(self, number: int) -> None:
        """Send a signal to the first process, if it lives."""
        self._ask(b"first %d" % number)

    def usage(self) -> tuple[int | None, float]:
        """Return the largest resident memory of one process, in bytes, and the processor time, in seconds."""
        return self._usage

    def end(
        self, grace_s: float, meanwhile: Callable[[], object], *, warned: bool = False, by_itself: bool = False
    ) -> None:
        """End every process. If the guard was killed, the launcher ends what the guard has left."""
        super().end(grace_s, meanwhile, warned=warned, by_itself=by_itself)
        while self.lost:
            with contextlib.suppress(OSError):
                sweep(self._launcher, self._token)
                return
            signal.sigtimedwait({signal.SIGUSR1}, AGAIN_S)
            meanwhile()

    def _ask(self, message: bytes) -> bool:
        try:
            self.guard.send(message, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True


def connect(launcher: str) -> socket.socket:
    """Return a connection to the launcher.

    Raises:
        OSError: no launcher listens there, or one that is not root's.

    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.connect(launcher)
        size = struct.calcsize("3i")
        uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]
    except BaseException:
        connection.close()
        raise
    if uid != 0:
        connection.close()
        raise PermissionError(None, "it is not root's")
    return connection


def greet(launcher: str) -> None:
    """Check that the launcher answers.

    Raises:
        OSError: the launcher does not answer, or serves another account.

    """
    with connect(launcher) as connection:
        connection.settimeout(ANSWER_S)
        connection.send(GREETING)
        if connection.recv(MOST_BYTES) != GREETING:
            raise ConnectionError(None, "it serves another account")


def sweep(launcher: str, token: str) -> int:
    """Kill every process of the run *token*, and return how many there were.

    Raises:
        OSError: the launcher does not answer, so processes may be left.

    """
    with connect(launcher) as connection:
        connection.settimeout(ANSWER_S)
        connection.send(SWEEP + b" " + token.encode())
        answer = connection.recv(MOST_BYTES)
    if not answer.startswith(b"swept "):
        raise ConnectionError(None, "the launcher ended the connection")
    return int(answer.split()[1])


def port_address(launcher: str, token: str, port: int) -> str | None:
    """Return the address here at which only processes of the run *token* listen on *port*, None if there is none.

    Raises:
        OSError: the launcher does not answer, or is of an older version.

    """
    with connect(launcher) as connection:
        connection.settimeout(ANSWER_S)
        connection.send(b"%s %s %d" % (PORT, token.encode(), port))
        answer = connection.recv(MOST_BYTES).decode(errors="replace")
    if not answer.startswith("at "):
        raise ConnectionError(None, "the launcher ended the connection: it is of an older version")
    return answer.removeprefix("at ") or None


def remove_code(launcher: str, run_dir: str) -> None:
    """Delete the files in the code directory of the run directory *run_dir*, as their owner.

    Raises:
        OSError: files may be left: not all could be deleted, the launcher refused, or it does not answer.

    """
    with connect(launcher) as connection:
        connection.settimeout(ANSWER_S)
        connection.send(REMOVE + b" " + run_name(run_dir))
        answer = connection.recv(MOST_BYTES)
    word, _, rest = answer.decode(errors="replace").partition(" ")
    if word == "no":
        number, _, reason = rest.partition(" ")
        raise OSError(int(number), reason)
    if word != "removed":
        raise ConnectionError(None, "the launcher ended the connection")


def pack_code(launcher: str, run_dir: str, request: int, output: int) -> tuple[int, str]:
    """Have the results in the run directory *run_dir* packed as their owner, and wait for the end.

    *request* and *output* are open files: one has a :class:`workers.results.pack.ArchiveRequest`, and the archive is
    written to the other. Return 0 and lines for the caller's user, or an errno (-1: none) and the reason why the
    archive is not complete.

    Raises:
        OSError: the launcher does not answer.

    """
    with connect(launcher) as connection:
        socket.send_fds(connection, [PACK + b" " + run_name(run_dir)], [request, output])
        answer = connection.recv(MOST_BYTES)  # the guard bounds the time without progress
    word, _, rest = answer.decode(errors="replace").partition(" ")
    if word == "packed":
        return 0, rest
    number, _, reason = rest.partition(" ")
    if word != "no":
        raise ConnectionError(None, "it ended the connection: it was killed, or is of an older version")
    return int(number), reason


def launch(
    spec: dict[str, Any], output: LogFile | Terminal, wait: Callable[[int, dict[str, Any], Callable[[], None]], None]
) -> LaunchedTree:
    """Have the launcher start the job's first process as its submitter, with its output to *output*.

    *wait* waits until a descriptor is readable. If the run must end before that, it calls its last argument and raises.

    Raises:
        NotStarted: the process could not be started, or it is too late to start it; the message says which.

    """
    if time.monotonic() >= spec["start_before"]:
        raise NotStarted("lost", TOO_LATE)
    launcher = spec["launcher"]
    try:
        guard = connect(launcher)
        names = ["spec"] if spec["code"] is None else ["spec", code.BUNDLE]
        files = [os.open(name, os.O_RDONLY | os.O_CLOEXEC) for name in names]
        try:
            socket.send_fds(guard, [START + b" " + run_name(os.getcwd())], [*files, *output.descriptors()])
        finally:
            for each in files:
                os.close(each)
        output.begin()
        wait(guard.fileno(), spec, lambda: abandon(guard))
        answer = guard.recv(MOST_BYTES)
    except OSError as error:
        reason = f"the launcher {launcher} cannot be used: {error.strerror or error}"
        raise NotStarted("lost", reason, hosts_fault=True) from error
    word, _, rest = answer.decode(errors="replace").partition(" ")
    if word == "ok":
        pid, root = rest.split()
        return LaunchedTree(int(pid), int(root), guard, launcher, spec["env"].get(TOKEN, ""))
    guard.close()
    if word == "no":
        raise no_start(rest)
    raise NotStarted("lost", f"the launcher {launcher} ended the connection", hosts_fault=True)


def abandon(guard: socket.socket) -> None:
    """Have the guard kill the child that was to become the job, and wait until it is gone, if it can be killed."""
    with contextlib.suppress(OSError):
        guard.settimeout(UNKILLABLE_S)
        guard.shutdown(socket.SHUT_WR)
        while guard.recv(MOST_BYTES):
            pass
