"""A second command in a run that goes on (``gpuqueue exec``). Runs in the shim. Standard library only.

A client connects to the socket ``exec`` in the run directory, which only the account of the shim can open. The shim
forks a process for each connection. That process starts the command with the job's environment, directory and account,
passes on its input and output, and ends it when the client or the run is gone. The command is no process of the job:
its exit status goes to the client alone.

Both sides send frames: a letter, the length of the payload in two bytes (big-endian), and the payload.

======  ======  ===============================================================================================
letter  from    payload
======  ======  ===============================================================================================
``R``   client  the request, or a part of it: JSON with ``argv``, ``terminal`` ([columns, rows] or null),
                ``input`` (whether it has standard input) and ``ticket`` (the signature of the service, or null)
``S``   client  empty: the request is complete
``I``   client  input
``Z``   client  empty: the input has ended
``W``   client  columns and rows of the client's terminal, two bytes each
``O``   shim    output; with a terminal all of it
``E``   shim    standard error
``A``   shim    empty: nothing has happened for ALIVE_S
``N``   shim    the command did not start: an errno, or -1, and the reason
``X``   shim    the exit status, negative for a signal, and ``ended`` if the run has ended first
======  ======  ===============================================================================================
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios
import time

from workers.shim.launch_protocol import COMMAND, MAX_COMMAND_BYTES, MOST_BYTES, command_environment, wake_on
from workers.shim.launched import LaunchedTree
from workers.shim.start import execute
from workers.shim.tree import PR_SET_PDEATHSIG, SETTLE_S, WAKE, Tree, end_child, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_CHILD_SUBREAPER = 36
#: The socket in the run directory.
SOCKET = "exec"
#: Most commands at a time, and most connections that wait.
MAX_COMMANDS = 16
#: Most input that the command has not read, most output that the client has not read, and most bytes of one read.
MAX_INPUT_BYTES, MAX_OUTPUT_BYTES, CHUNK_BYTES = 65536, 262144, 32768
#: How long a client may take to send its request, in seconds.
REQUEST_S = 10.0
#: The longest silence of the shim, in seconds.
ALIVE_S = 15.0
#: Time between TERM and KILL for what is left of a command, and how long the shim waits for all commands at the end.
GRACE_S, END_S = 1.0, 3.0
#: How long the last output may take to reach the client after the run has ended, in seconds.
FLUSH_S = 1.0

_HEAD = struct.Struct("!cH")
_SIZE = struct.Struct("!HH")


class Commands:
    """The second commands of this run."""

    def __init__(self, spec: dict[str, Any], tree: Tree) -> None:
        self._spec = spec
        self._tree = tree
        self._pids: list[int] = []
        self._life, self._ours = os.pipe()  # each command ends once no process has the second one open
        self._listener: socket.socket | None = None
        with contextlib.suppress(OSError):  # a run without it is a run that takes no second command
            os.unlink(SOCKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.bind(SOCKET)
            listener.listen(MAX_COMMANDS)
            wake_on(listener)
        except OSError:
            listener.close()
        else:
            self._listener = listener

    def poll(self) -> None:
        """Begin to serve the clients that have connected."""
        while self._listener is not None:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self._pids = [pid for pid in self._pids if not _is_gone(pid)]
            with line, contextlib.suppress(OSError):  # without a process the client sees the end of the connection
                if len(self._pids) < MAX_COMMANDS:
                    self._begin(line)

    def _begin(self, line: socket.socket) -> None:
        guard = getattr(self._tree, "guard", None)
        channel = None
        if guard is not None:
            channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                socket.send_fds(guard, [COMMAND], [theirs.fileno()])
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() == me:
                    os.close(self._ours)
                    for ours in filter(None, (self._listener, guard)):
                        ours.close()
                    serve(line, self._spec, channel, self._life)
            finally:
                os._exit(0)
        if channel is not None:
            channel.close()
        self._pids.append(pid)

    def end(self, *, at_once: bool) -> None:
        """End all second commands: the run ends. *at_once* gives them no time."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            with contextlib.suppress(OSError):
                os.unlink(SOCKET)
        os.close(self._ours)
        deadline = time.monotonic() + (0.0 if at_once else END_S)
        while pids := [pid for pid in self._pids if not _is_gone(pid)]:
            self._tree.reap()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                for pid in pids:  # not reaped, so each pid is its own
                    os.kill(pid, signal.SIGKILL)
                return
            signal.sigtimedwait(WAKE, min(left_s, 0.2))


def _is_gone(pid: int) -> bool:
    """Return whether the child *pid* has ended, and reap it. The tree may have reaped it before."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def serve(line: socket.socket, spec: dict[str, Any], channel: socket.socket | None, life: int) -> None:
    """Run the command that the client at *line* asks for. *channel* leads to the launcher if it starts the job."""
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    line.settimeout(REQUEST_S)
    frames = Frames()
    plain = frames.request(line)
    if plain is None:
        return
    line.setblocking(False)
    ends = Ends(plain["terminal"], has_input=bool(plain["input"]))
    try:
        tree = started(plain, spec, ends, line) if channel is None else launched(plain, ends, channel, line)
    except NotBegun as no:
        line.settimeout(REQUEST_S)
        line.sendall(frame(b"N", str(no).encode(errors="replace")[:MOST_BYTES]))
        return
    Passing(line, tree, ends, frames, life).to_the_end()


class NotBegun(Exception):
    """The command did not start. The message is an errno, or -1, and the reason."""


def frame(letter: bytes, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return _HEAD.pack(letter, len(payload)) + payload


class Frames:
    """The frames of the client, put together from what arrives."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        #: The frames that came right behind the request.
        self.early: list[tuple[bytes, bytes]] = []

    def add(self, some: bytes) -> list[tuple[bytes, bytes]]:
        """Return the frames that are complete with *some* more bytes."""
        self._bytes += some
        complete = []
        while len(self._bytes) >= _HEAD.size:
            letter, length = _HEAD.unpack_from(self._bytes)
            if len(self._bytes) < _HEAD.size + length:
                break
            complete.append((letter, bytes(self._bytes[_HEAD.size : _HEAD.size + length])))
            del self._bytes[: _HEAD.size + length]
        return complete

    def request(self, line: socket.socket) -> dict[str, Any] | None:
        """Return the request of the client, None if it sends none. What follows it is in ``early``."""
        text = b""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            while len(text) <= MAX_COMMAND_BYTES and (some := line.recv(CHUNK_BYTES)):
                complete = self.add(some)
                letters = [letter for letter, _ in complete]
                end = letters.index(b"S") if b"S" in letters else len(complete)
                text += b"".join(payload for _, payload in complete[:end])
                if end < len(complete):
                    self.early = complete[end + 1 :]
                    plain: dict[str, Any] = json.loads(text)
                    words = plain["argv"]
                    is_valid = type(words) is list and words and all(type(word) is str for word in words)
                    return plain if is_valid and {"terminal", "input", "ticket"} <= plain.keys() else None
        return None


class Ends:
    """The two ends of the command's input and output: a pseudo-terminal of the *size* [columns, rows], or pipes.

    ``theirs`` are those of the command, ``outputs`` and ``input`` those of this process.
    """

    def __init__(self, size: list[int] | None, *, has_input: bool) -> None:
        self.has_terminal = size is not None
        if size is not None:
            ours, theirs = os.openpty()
            self.resize(ours, _SIZE.pack(*size))
            self.theirs, self.outputs, self.input = [theirs], {ours: b"O"}, ours
            return
        out, their_out = os.pipe()
        errors, their_errors = os.pipe()
        self.theirs, self.outputs, self.input = [their_out, their_errors], {out: b"O", errors: b"E"}, -1
        if has_input:
            their_input, self.input = os.pipe()
            self.theirs.append(their_input)

    @staticmethod
    def resize(fd: int, size: bytes) -> None:
        """Give the terminal *fd* the *size* of a frame."""
        columns, rows = _SIZE.unpack(size)
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def take(self) -> None:
        """Make the command's ends the standard input, output and error of this process."""
        take(self.theirs, has_terminal=self.has_terminal)

    def descriptors(self) -> list[int]:
        """Return the command's ends: output, errors and input; or its terminal."""
        return self.theirs

    def begin(self) -> None:
        """Close the command's ends in this process, and never wait for ours."""
        for fd in self.theirs:
            os.close(fd)
        for fd in {*self.outputs, self.input} - {-1}:
            os.set_blocking(fd, False)


def take(theirs: list[int], *, has_terminal: bool) -> None:
    """Make *theirs* the standard input, output and error of this process: a terminal; or output, errors and input."""
    if has_terminal:
        fcntl.ioctl(theirs[0], termios.TIOCSCTTY, 0)
        theirs = theirs * 3
    for standard, fd in zip((1, 2, 0), theirs, strict=False):  # without an input it stays empty
        os.dup2(fd, standard)


def started(plain: dict[str, Any], spec: dict[str, Any], ends: Ends, line: socket.socket) -> Tree:
    """Start the command as this account, and return its processes.

    Raises:
        NotBegun: it cannot be started.
        OSError: the client is gone.

    """
    if spec.get("container") is not None:  # a worker of an earlier version writes none
        raise NotBegun("-1 the job runs in a container, and a second command would run outside of it")
    env = command_environment(spec["env"], has_terminal=ends.has_terminal)
    second = {**spec, "argv": plain["argv"], "env": env, "code": None, "outputs": None, "start_before": float("inf")}
    reader, answer = os.pipe()
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            execute(second, ends.take, answer, me)
        finally:
            os._exit(127)
    os.close(answer)
    ends.begin()
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(line, select.POLLRDHUP)
    poll.poll()  # the directory may be on a dead file server
    os.set_blocking(reader, False)
    try:
        reason = os.read(reader, MOST_BYTES).decode(errors="replace")
    except BlockingIOError:
        end_child(pid)
        raise ConnectionResetError(None, "the client is gone") from None
    os.close(reader)
    if reason:
        os.waitpid(pid, 0)
        raise NotBegun(reason)
    return Tree(pid)


class LaunchedCommand(LaunchedTree):
    """The processes of a command that the launcher has started. If its guard is killed, that of the run ends them."""

    end = Tree.end


def launched(plain: dict[str, Any], ends: Ends, channel: socket.socket, line: socket.socket) -> Tree:
    """Have the guard of the run start the command as the submitter of the job, and return its processes.

    Raises:
        NotBegun: it cannot be started.
        OSError: the client, or the guard, is gone.

    """
    request = os.memfd_create("command", os.MFD_CLOEXEC)
    os.write(request, json.dumps(plain).encode())
    try:
        socket.send_fds(channel, [COMMAND], [request, *ends.descriptors()])
    except OSError:
        raise NotBegun("-1 the launcher that started the job is of an earlier version, or the job has ended") from None
    os.close(request)
    ends.begin()
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(line, select.POLLRDHUP)
    if channel.fileno() not in {fd for fd, _ in poll.poll()}:
        raise ConnectionResetError(None, "the client is gone")
    word, _, rest = channel.recv(MOST_BYTES).decode(errors="replace").partition(" ")
    if word == "no":
        raise NotBegun(rest)
    if word != "ok":
        raise NotBegun("-1 the launcher that started the job is of an earlier version, or the job has ended")
    pid, root = rest.split()
    return LaunchedCommand(int(pid), int(root), channel, "", "")


class Passing:
    """Passes on the input and output of a command until it has ended, or the client or the run is gone."""

    def __init__(self, line: socket.socket, tree: Tree, ends: Ends, frames: Frames, life: int) -> None:
        self._line, self._tree, self._ends, self._frames, self._life = line, tree, ends, frames, life
        self._watched = tree.guard if isinstance(tree, LaunchedTree) else os.pidfd_open(tree.pid)
        self._typed, self._unsent = bytearray(), bytearray()
        self._input_ended = self._is_left = self._is_over = False

    def to_the_end(self) -> None:
        """Pass on everything, end what is left of the command, and send its exit status."""
        settled = float("inf")
        self._obey(self._frames.early)
        while not (self._is_left or self._is_over) and time.monotonic() < settled:
            self._step(min(ALIVE_S, settled - time.monotonic()))
            is_left_over = self._tree.reap()
            if self._tree.status is not None and not self._ends.outputs:
                break
            if self._tree.status is not None and is_left_over and settled == float("inf"):
                settled = time.monotonic() + SETTLE_S
        if self._ends.has_terminal and self._tree.status is None:
            self._tree.send(signal.SIGHUP)
        self._tree.end(GRACE_S, lambda: None)
        if self._is_left:
            return
        flushed = time.monotonic() + FLUSH_S if self._is_over else float("inf")
        for fd in self._ends.outputs:  # what was written before the end; a process that no signal ends may hold it open
            self._rest_of(fd, flushed)
        words = f"{self._tree.status if self._tree.status is not None else -signal.SIGKILL}"
        self._unsent += frame(b"X", (words + (" ended" if self._is_over else "")).encode())
        self._flush(flushed)

    def _rest_of(self, fd: int, until: float) -> None:
        with contextlib.suppress(OSError):
            while not self._is_left and (some := os.read(fd, CHUNK_BYTES)):
                self._unsent += frame(self._ends.outputs[fd], some)
                if len(self._unsent) >= MAX_OUTPUT_BYTES:
                    self._flush(until)

    def _flush(self, until: float) -> None:
        """Send what is unsent, at most until *until*, or until the client is gone or the run ends."""
        while self._unsent and not self._is_left and (left_s := until - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self._line, select.POLLOUT)
            if until == float("inf"):
                poll.register(self._life, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(min(left_s, ALIVE_S) * 1000)}
            if self._life in ready:
                until = time.monotonic() + FLUSH_S
            self._send()

    def _step(self, timeout_s: float) -> None:
        """Wait until something can be passed on, at most *timeout_s*, and pass it on."""
        poll, ends, line = select.poll(), self._ends, self._line.fileno()
        wants_input = len(self._typed) < MAX_INPUT_BYTES
        poll.register(line, (select.POLLIN if wants_input else 0) | (select.POLLOUT if self._unsent else 0))
        poll.register(self._life, select.POLLIN)
        if self._tree.status is None:
            poll.register(self._watched, select.POLLIN)
        has_room = len(self._unsent) < MAX_OUTPUT_BYTES
        events = {fd: select.POLLIN for fd in ends.outputs if has_room}
        if self._typed and ends.input >= 0:
            events[ends.input] = events.get(ends.input, 0) | select.POLLOUT
        for fd, event in events.items():
            poll.register(fd, event)
        ready = dict(poll.poll(max(0.0, timeout_s) * 1000))
        if not ready and not self._unsent:
            self._unsent += frame(b"A")
        if self._life in ready:
            self._is_over = True
        if ready.get(line, 0) & ~select.POLLOUT:
            self._receive()
        if ends.input in ready and self._typed:
            self._write_input()
        for fd in [fd for fd in ends.outputs if fd in ready]:
            self._read_output(fd)
        if self._unsent:
            self._send()

    def _receive(self) -> None:
        try:
            some = self._line.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            some = b""
        self._is_left = not some
        self._obey(self._frames.add(some))

    def _obey(self, complete: list[tuple[bytes, bytes]]) -> None:
        for letter, payload in complete:
            if letter == b"I":
                self._typed += payload
            elif letter == b"Z":
                self._input_ended = True
            elif letter == b"W" and len(payload) == _SIZE.size and self._ends.has_terminal:
                with contextlib.suppress(OSError):
                    self._ends.resize(self._ends.input, payload)
        if self._ends.input < 0:
            self._typed.clear()
        elif self._input_ended and not self._typed:
            self._close_input()

    def _write_input(self) -> None:
        try:
            del self._typed[: os.write(self._ends.input, self._typed[:CHUNK_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # the command reads no more
            self._typed.clear()
            self._input_ended = True
        if self._input_ended and not self._typed:
            self._close_input()

    def _close_input(self) -> None:
        if self._ends.input >= 0 and not self._ends.has_terminal:
            os.close(self._ends.input)
            self._ends.input = -1

    def _read_output(self, fd: int) -> None:
        try:
            some = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: no process has the terminal open
            some = b""
        if some:
            self._unsent += frame(self._ends.outputs[fd], some)
            return
        del self._ends.outputs[fd]
        if fd != self._ends.input:
            os.close(fd)
        else:
            self._ends.input = -1

    def _send(self) -> None:
        try:
            del self._unsent[: self._line.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._is_left = True
