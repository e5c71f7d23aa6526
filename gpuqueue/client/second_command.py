"""A second command in a running job, for the user who waits for it: here on this machine, or behind a service."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpuqueue.client import reads
from gpuqueue.client.run_logs import own_log
from gpuqueue.errors import GpuQueueError, Refused, Unreachable
from gpuqueue.model import ticket
from gpuqueue.model.job import JobState
from gpuqueue.system import command_socket
from gpuqueue.system.terminal_socket import size_frame, typed_frames
from gpuqueue.text.sanitize import in_one_line

if TYPE_CHECKING:
    from gpuqueue.client.connection import Connection
    from gpuqueue.model.api import SecondCommand
    from gpuqueue.model.run import Record, Run
    from gpuqueue.model.terminal_size import Window

#: The exit codes of a shell for a program that is missing, and one that cannot be started.
NO_PROGRAM, NO_START = 127, 126
#: How the shim and the launcher begin the reason of a program that does not start.
OF_PROGRAM = "cannot start "
CHUNK_BYTES = 65536


class Line(Protocol):
    """The way to the shim, which carries frames."""

    def send(self, frames: bytes) -> None:
        """Send *frames*. Wait while the command does not read its input."""

    def pieces(self) -> Iterator[bytes]:
        """Yield what the shim sends, until it closes the line."""

    def close(self) -> None:
        """Leave the command, which ends."""


class JobCommand:
    """A command that runs in a job. One thread may send its input while another one reads its output."""

    #: The exit status: negative for a signal, None while the command runs.
    status: int | None = None
    #: Whether the run of the job has ended, and the command with it.
    run_has_ended = False

    def __init__(self, line: Line) -> None:
        self._line = line

    def type(self, typed: bytes) -> None:
        """Send input. Wait while the command does not read it."""
        self._line.send(typed_frames(typed))

    def end_input(self) -> None:
        """Close the standard input of the command."""
        self._line.send(command_socket.INPUT_ENDED)

    def resize(self, window: Window) -> None:
        """Send the size of the user's terminal."""
        self._line.send(size_frame(window))

    def output(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the output until the command has ended; True marks standard error.

        Raises:
            Refused: the command could not be started; the exit code is that of a shell.
            Unreachable: the service or the host of the job does not answer any more.

        """
        for letter, payload in command_socket.frames(self._line.pieces()):
            if letter in {b"O", b"E"}:
                yield payload, letter == b"E"
            elif letter == command_socket.NOT_BEGUN:
                raise not_begun(payload)
            elif letter == b"X":
                status, _, ended = payload.partition(b" ")
                self.status, self.run_has_ended = int(status), bool(ended)
                return
        raise Unreachable(
            "the connection to the command was lost, which ends it: its job, its host or the service is gone",
            "gpuqueue show says whether the job goes on",
        )

    def close(self) -> None:
        """Leave the command, which ends."""
        self._line.close()


def not_begun(payload: bytes) -> GpuQueueError:
    """Return the error of a command that did not start."""
    number, _, reason = payload.decode(errors="replace").partition(" ")
    error = Refused(in_one_line(reason))
    codes = {str(errno.ENOENT): NO_PROGRAM, str(errno.EACCES): NO_START, str(errno.ENOEXEC): NO_START}
    if reason.startswith(OF_PROGRAM):  # else it is the directory of the job, or its process
        error.exit_code = codes.get(number, Refused.exit_code)
    return error


class LocalLine:
    """The way to a shim on this machine, in the run directory *run_dir*."""

    def __init__(self, run_dir: Path, label: str) -> None:
        """Connect to the shim.

        Raises:
            Refused: that is not possible.

        """
        self._socket = connected_to(run_dir, label)

    def send(self, frames: bytes) -> None:
        """Send *frames*."""
        with contextlib.suppress(OSError):  # the command has ended, or another thread has closed this
            self._socket.sendall(frames)

    def pieces(self) -> Iterator[bytes]:
        """Yield what the shim sends."""
        with contextlib.suppress(OSError):  # the shim was killed, or another thread has closed this
            while piece := self._socket.recv(CHUNK_BYTES):
                yield piece

    def close(self) -> None:
        """Leave the command. A thread that waits for output sees the end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connected_to(run_dir: Path, label: str) -> socket.socket:
    """Return a connection to the shim in *run_dir*, of the job *label*.

    Raises:
        Refused: there is none, or it is another account's.

    """
    try:
        return command_socket.connected(run_dir)
    except (FileNotFoundError, ConnectionRefusedError):
        raise Refused(
            f"job {label} has just ended, or takes no second command: was it started by an earlier version?"
        ) from None
    except OSError as error:
        raise Refused(f"no command can run in job {label} from here: {error.strerror}") from None


def begun(connection: Connection, job: int | str, command: SecondCommand) -> JobCommand:
    """Begin *command* in the running *job* on this machine."""
    record = reads.newest(connection, job)
    run = run_of(record)
    owner, account = record.job.spec.account, connection.account
    if (owner.name, owner.uid) != (account.name, account.uid):
        raise Refused(f"only {owner.name} may run a command in job {record.job.label}")
    log = own_log(connection.settings, run)
    if log is None:
        raise Refused(f"job {record.job.label} runs on host {run.host}: a command reaches it through a service only")
    line = LocalLine(log.parent, record.job.label)
    line.send(command_socket.request_frames(command, None))
    return JobCommand(line)


def run_of(record: Record) -> Run:
    """Return the run of *record* in which a second command can run.

    Raises:
        Refused: there is none.

    """
    job, run = record.job, record.last_run
    if job.spec.array is not None:
        one = f"{job.id}_{next(iter(job.spec.array.indexes))}"
        raise Refused(f"array {job.id} is no process: name a member, such as {one}")
    if job.state is not JobState.RUNNING or run is None or not run.log_path:
        raise Refused(f"job {job.label} ({job.state}) does not run: a command needs a running job")
    if job.spec.is_whole:
        raise Refused(f"job {job.label} runs in {job.spec.device}, not here: use what that has for a second command")
    if job.spec.container is not None:
        raise Refused(
            f"job {job.label} runs in a container, and gpuqueue exec enters none: use that of its engine, on the host "
            f"{run.host}, such as podman exec"
        )
    return run


def ticket_of(connection: Connection, record: Record, run: Run, command: SecondCommand) -> str | None:
    """Return the signature of *command* in *run*; None if this site signs nothing. Its owner must have asked for it."""
    if connection.signer is None:
        return None
    statement = {
        "job": record.job.id,
        "token": run.token,
        "uid": record.job.spec.account.uid,
        "argv": list(command.argv),
        "terminal": command.window is not None,
        "input": command.has_input,
        "until": int(time.time()) + ticket.COMMAND_VALID_S,
    }
    return connection.signer.command(statement)
