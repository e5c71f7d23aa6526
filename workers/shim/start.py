"""Starts the job's first process in the shim, connects its output, and explains a failed start.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time

from workers.shim.files import POLL_S, asked_end, put, renewed_until
from workers.shim.tree import PR_SET_PDEATHSIG, RESET, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workers.shim.pseudo_terminal import Terminal
    from workers.shim.warm import WarmInterpreter

#: Why a run must not start after ``start_before``: another worker may hold the claim by then.
TOO_LATE = "started too late: the claim may be another's"
#: The errors of a host that lacks a resource. A job that could not start for such an error has not failed.
SHORTAGES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


class NotStarted(Exception):
    """The job's first process could not be started."""

    def __init__(self, kind: str, detail: str, *, hosts_fault: bool = False) -> None:
        super().__init__(detail)
        self.kind = kind
        self.hosts_fault = hosts_fault


class LogFile:
    """The log as the job's output. The job writes to the file directly; *errors* is a separate file for stderr."""

    def __init__(self, log: int, errors: int | None = None) -> None:
        self.log = log
        self.errors = errors

    def take(self) -> None:
        """Make the log the standard output and error of this process."""
        os.dup2(self.log, 1)
        os.dup2(self.log if self.errors is None else self.errors, 2)

    def begin(self) -> None:
        """Close the files in this process. The job has its own descriptors."""
        os.close(self.log)
        if self.errors is not None:
            os.close(self.errors)

    def drain(self) -> None:
        """Do nothing: the job's output is already in the file."""


def output_of(spec: dict[str, Any]) -> LogFile | Terminal:
    """Return the output of the job: its log file, or a terminal if the job wants one.

    A spec from an older worker may lack the terminal's fields.

    Raises:
        NotStarted: the host has no disk space, file descriptor or pseudo-terminal left.

    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open("log", flags, 0o600)
        if spec.get("pty"):
            return typed_terminal(log, *spec["pty"]) if spec.get("typed") else terminal(log, *spec["pty"])
        return LogFile(log, os.open("stderr", flags, 0o600) if spec.get("separate_stderr") else None)
    except OSError as error:
        raise NotStarted("lost", f"cannot make a process: {error.strerror}", hosts_fault=True) from error


def terminal(log: int, columns: int, rows: int) -> Terminal:
    """Return a new terminal whose output goes into *log*. The import is local because few jobs need it."""
    from workers.shim.pseudo_terminal import Terminal  # noqa: PLC0415 - see above

    return Terminal(log, columns, rows)


def typed_terminal(log: int, columns: int, rows: int) -> Terminal:
    """Return a new attached terminal, which accepts typed input."""
    from workers.shim.attached_terminal import TypedTerminal  # noqa: PLC0415 - as above

    return TypedTerminal(log, columns, rows)


def spawn(spec: dict[str, Any], output: LogFile | Terminal) -> int:
    """Start the job's first process, with its output to *output*, and return its pid.

    Raises:
        NotStarted: the process could not be started, or it is too late to start it; the message says which.

    """
    if time.monotonic() >= spec["start_before"]:
        raise NotStarted("lost", TOO_LATE)
    try:
        word, reported = os.pipe()  # a successful exec closes it; otherwise it carries the reason
        me = os.getpid()
        pid = os.fork()
    except OSError as error:
        raise NotStarted("lost", f"cannot make a process: {error.strerror}", hosts_fault=True) from error
    if pid == 0:
        step, program = "cannot prepare the process", ""
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # if the shim is killed
            if os.getppid() != me:  # the shim was killed before the prctl call
                os._exit(127)
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            for number in RESET:
                signal.signal(number, signal.SIG_DFL)  # undo what Python, nohup or a daemon ignores
            os.umask(int(spec["umask"]))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            output.take()
            step = f"cannot enter the working directory {spec['cwd']}"
            os.chdir(spec["cwd"])  # can block for ever on a dead file server
            if time.monotonic() >= spec["start_before"]:
                os.write(reported, f"0 {TOO_LATE}".encode())
                os._exit(127)
            program = spec["argv"][0]
            step = f"cannot start {program}"
            os.execvpe(program, spec["argv"], spec["env"])  # noqa: S606 - no shell on purpose
        except Exception as error:  # noqa: BLE001 - the shim reports any error
            words = f"{getattr(error, 'errno', -1) or -1} {step}: {why(error, program)}"
            os.write(reported, words.encode(errors="replace"))
        finally:
            os._exit(127)
    os.close(reported)
    output.begin()
    with os.fdopen(word, "rb") as reader:
        await_word(word, pid, spec["start_before"])
        code, _, reason = reader.read().decode(errors="replace").partition(" ")
    if code:
        os.waitpid(pid, 0)
        raise no_start(int(code), reason)
    return pid


def no_start(number: int, reason: str) -> NotStarted:
    """Return the exception for a first process that could not start; *number* is an errno, or 0 for too late."""
    shortage = number in SHORTAGES
    return NotStarted("lost" if shortage or number == 0 else "refused", reason, hosts_fault=shortage)


def become(warm_interpreter: WarmInterpreter, spec: dict[str, Any], output: LogFile | Terminal) -> int | None:
    """Turn the warm interpreter *warm_interpreter* into the job's first process and return its pid.

    Returns None if the warm interpreter cannot become the job. In that case no code of the job has run.

    Raises:
        NotStarted: no process can start the job, or it is too late to start it; the message says which.

    """
    try:
        word, reported = os.pipe()
    except OSError as error:
        warm_interpreter.end()
        report_start(f"cold: {error.strerror}")
        return None
    try:
        warm_interpreter.ask(os.getcwd(), output.log, reported)
    finally:
        os.close(reported)
    with os.fdopen(word, "rb") as reader:
        await_word(word, warm_interpreter.pid, spec["start_before"])
        said = reader.read().decode(errors="replace")
    began = said == "ok"
    if not began:
        warm_interpreter.end()
    number, _, reason = said.partition(" ")
    if number.isdigit():  # an errno: a cold start would fail too
        raise no_start(int(number), reason)
    report_start("warm" if began else said or "cold: the warm interpreter has ended")
    if began:
        output.begin()
    return warm_interpreter.pid if began else None


def report_start(words: str) -> None:
    """Record in the file ``start`` whether the run started warm, or why not. Ignore write errors."""
    with contextlib.suppress(OSError):
        put("start", words, sync=False)


def await_word(word: int, pid: int, until: float) -> None:
    """Wait until the job's process has started or has reported why not. That can block on a dead file server.

    Raises:
        NotStarted: the run was cancelled or its heartbeat expired before the process started.

    """
    poll = select.poll()
    poll.register(word, select.POLLIN)
    while not poll.poll(POLL_S * 1000):
        until = renewed_until(until)
        kind = asked_end() or ("lost" if time.monotonic() >= until else None)
        if kind is not None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise NotStarted(kind.strip(), "its working directory or its program does not answer")


def why(error: Exception, program: str) -> str:
    """Return the error in words, with details that the kernel's message lacks."""
    words = str(getattr(error, "strerror", None) or error)
    number = getattr(error, "errno", None)
    if number == errno.ENOEXEC:
        return f"{words}: it is no program for this kind of machine, and no script that begins with #!"
    if number == errno.EACCES and os.path.isdir(program):
        return f"{words}: it is a directory"
    if number == errno.ENOENT and "/" in program and os.path.exists(program):
        return f"{words}: the interpreter that its first line names"
    return words
