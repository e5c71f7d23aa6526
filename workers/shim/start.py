"""How the shim starts its job's first process: where its output goes, and why it could not begin.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time

from workers.shim.files import LOOK_S, asked_end, put, vouched_until
from workers.shim.tree import PR_SET_PDEATHSIG, RESET, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workers.shim.pseudo_terminal import Terminal
    from workers.shim.warm import Spare

#: Why a run must not start any more; its claim may be another's.
TOO_LATE = "started too late: the claim may be another's"
#: What a host can be short of. A job that could not start for that has not failed.
SHORTAGES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


class NotStarted(Exception):
    """The job's first process could not be started."""

    def __init__(self, kind: str, detail: str, *, hosts_fault: bool = False) -> None:
        super().__init__(detail)
        self.kind = kind
        self.hosts_fault = hosts_fault


class LogFile:
    """The log as the job's output: it writes there by itself. Standard error has one of its own if *errors* is one."""

    def __init__(self, log: int, errors: int | None = None) -> None:
        self.log = log
        self.errors = errors

    def take(self) -> None:
        """Make it the standard output and error of this process."""
        os.dup2(self.log, 1)
        os.dup2(self.log if self.errors is None else self.errors, 2)

    def begin(self) -> None:
        """Leave it to the job."""
        os.close(self.log)
        if self.errors is not None:
            os.close(self.errors)

    def drain(self) -> None:
        """Do nothing: what was written is there."""


def output_of(spec: dict[str, Any]) -> LogFile | Terminal:
    """Return where the job's output goes: into its log, or to a terminal if it wants one (an older worker knew none).

    Raises:
        NotStarted: the host has no room, descriptor or terminal to give.

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
    """Return a new terminal whose output goes into *log*. Few jobs want one, and every start would pay the import."""
    if TYPE_CHECKING or __package__:
        from workers.shim.pseudo_terminal import Terminal  # noqa: PLC0415 - see above
    else:
        from shim_pty import Terminal  # noqa: PLC0415 - see above
    return Terminal(log, columns, rows)


def typed_terminal(log: int, columns: int, rows: int) -> Terminal:
    """Return a new terminal that people may type on."""
    if TYPE_CHECKING or __package__:
        from workers.shim.attached_terminal import TypedTerminal  # noqa: PLC0415 - as above
    else:
        from shim_tty import TypedTerminal  # noqa: PLC0415 - as above
    return TypedTerminal(log, columns, rows)


def spawn(spec: dict[str, Any], output: LogFile | Terminal) -> int:
    """Start the job's first process, with its output to *output*, and return its pid.

    Raises:
        NotStarted: it could not be started, or may not any more; the message says why.

    """
    if time.monotonic() >= spec["start_before"]:
        raise NotStarted("lost", TOO_LATE)
    try:
        word, told = os.pipe()  # closed by a successful exec, else it brings the reason
        me = os.getpid()
        pid = os.fork()
    except OSError as error:
        raise NotStarted("lost", f"cannot make a process: {error.strerror}", hosts_fault=True) from error
    if pid == 0:
        step, program = "cannot prepare the process", ""
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # should the shim itself be killed
            if os.getppid() != me:  # it was, before that could work
                os._exit(127)
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            for number in RESET:
                signal.signal(number, signal.SIG_DFL)  # what Python, nohup or a daemon ignores is not for the job
            os.umask(int(spec["umask"]))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            output.take()
            step = f"cannot enter the working directory {spec['cwd']}"
            os.chdir(spec["cwd"])  # on a dead file server this can take for ever
            if time.monotonic() >= spec["start_before"]:
                os.write(told, f"0 {TOO_LATE}".encode())
                os._exit(127)
            program = spec["argv"][0]
            step = f"cannot start {program}"
            os.execvpe(program, spec["argv"], spec["env"])  # noqa: S606 - no shell: that is the point
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side must hear of it
            words = f"{getattr(error, 'errno', -1) or -1} {step}: {why(error, program)}"
            os.write(told, words.encode(errors="replace"))
        finally:
            os._exit(127)
    os.close(told)
    output.begin()
    with os.fdopen(word, "rb") as reader:
        await_word(word, pid, spec["start_before"])
        code, _, reason = reader.read().decode(errors="replace").partition(" ")
    if code:
        os.waitpid(pid, 0)
        raise no_start(int(code), reason)
    return pid


def no_start(number: int, reason: str) -> NotStarted:
    """Return what to raise where the job's first process could not begin: *number* is the error's, 0 is too late."""
    shortage = number in SHORTAGES
    return NotStarted("lost" if shortage or number == 0 else "refused", reason, hosts_fault=shortage)


def become(spare: Spare, spec: dict[str, Any], output: LogFile | Terminal) -> int | None:
    """Let *spare* become the job's first process; return its pid, None if it cannot and nothing of the job has run.

    Raises:
        NotStarted: it could not be started, or may not any more; the message says why.

    """
    try:
        word, told = os.pipe()
    except OSError as error:
        spare.end()
        tell_start(f"cold: {error.strerror}")
        return None
    try:
        spare.ask(os.getcwd(), output.log, told)
    finally:
        os.close(told)
    with os.fdopen(word, "rb") as reader:
        await_word(word, spare.pid, spec["start_before"])
        said = reader.read().decode(errors="replace")
    began = said == "ok"
    if not began:
        spare.end()
    number, _, reason = said.partition(" ")
    if number.isdigit():  # nor could any other process
        raise no_start(int(number), reason)
    tell_start("warm" if began else said or "cold: the spare has ended")
    if began:
        output.begin()
    return spare.pid if began else None


def tell_start(words: str) -> None:
    """Say whether a spare became the job, or why not. Where that cannot be written, nobody hears it."""
    with contextlib.suppress(OSError):
        put("start", words, sync=False)


def await_word(word: int, pid: int, until: float) -> None:
    """Wait until the job's process has begun or says why not. On a dead file server that can take for ever.

    Raises:
        NotStarted: it must end before that.

    """
    poll = select.poll()
    poll.register(word, select.POLLIN)
    while not poll.poll(LOOK_S * 1000):
        until = vouched_until(until)
        kind = asked_end() or ("lost" if time.monotonic() >= until else None)
        if kind is not None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise NotStarted(kind.strip(), "its working directory or its program does not answer")


def why(error: Exception, program: str) -> str:
    """Return what went wrong, with what the kernel's own word for it does not say."""
    words = str(getattr(error, "strerror", None) or error)
    number = getattr(error, "errno", None)
    if number == errno.ENOEXEC:
        return f"{words}: it is no program for this kind of machine, and no script that begins with #!"
    if number == errno.EACCES and os.path.isdir(program):
        return f"{words}: it is a directory"
    if number == errno.ENOENT and "/" in program and os.path.exists(program):
        return f"{words}: the interpreter that its first line names"
    return words
