"""Starts the job's first process in the shim, connects its output, and explains a failed start.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time

from workers.shim import acl, code, containers
from workers.shim.attached_terminal import SOCKET, TypedTerminal
from workers.shim.files import POLL_S, asked_end, extended, put, read, renewed_until
from workers.shim.host_memory import adjust_oom_score
from workers.shim.launched import launch
from workers.shim.not_started import TOO_LATE, NotStarted, no_process, no_start, why
from workers.shim.output_link import make_links
from workers.shim.preempt_request import PreemptRequest
from workers.shim.pseudo_terminal import Terminal
from workers.shim.tree import Tree, begin_child, end_child, raise_open_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from workers.shim.warm import WarmInterpreter


class LogFile:
    """The log as the job's output. The job writes to the file directly; *errors* is a separate file for stderr."""

    def __init__(self, log: int, errors: int | None = None) -> None:
        self.log = log
        self.errors = errors

    def take(self) -> None:
        """Make the log the standard output and error of this process."""
        os.dup2(self.log, 1)
        os.dup2(self.log if self.errors is None else self.errors, 2)

    def descriptors(self) -> list[int]:
        """Return the descriptors of the job's output, and of its errors if they are separate."""
        return [self.log] if self.errors is None else [self.log, self.errors]

    def begin(self) -> None:
        """Close the files in this process. The job has its own descriptors."""
        os.close(self.log)
        if self.errors is not None:
            os.close(self.errors)

    def drain(self) -> None:
        """Do nothing: the job's output is already in the file."""


def output_of(spec: dict[str, Any]) -> LogFile | Terminal:
    """Return the output of the job: its log file, or a terminal if the job wants one.

    Raises:
        NotStarted: the host has no disk space, file descriptor or pseudo-terminal left.

    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open("log", flags, 0o600)
        if spec["pty"]:
            kind = TypedTerminal if spec["typed"] else Terminal
            return kind(log, *spec["pty"])
        return LogFile(log, os.open("stderr", flags, 0o600) if spec["separate_stderr"] else None)
    except OSError as error:
        raise no_process(error) from error


def share_files(uid: int) -> None:
    """Let the submitter read the log, open its output by name, type into the terminal, and write reports."""
    for name in acl.REPORTED:
        with contextlib.suppress(OSError):
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for name in (*acl.WRITTEN, SOCKET):
        acl.share(name, uid, acl.READ | acl.WRITE)


def started(spec: dict[str, Any], output: LogFile | Terminal, warm_interpreter: WarmInterpreter | None) -> Tree:
    """Start the job and return its process tree.

    Raises:
        NotStarted: the job could not be started; the message says why.

    """
    if spec["user"] is not None:
        share_files(spec["user"]["uid"])
        tree: Tree = launch(spec, output, wait)
    else:
        if spec.get("container") is not None:
            share_files(os.getuid())  # crun gives its output to the user inside, and a start that fails leaves it so
        pid = become(warm_interpreter, spec, output) if warm_interpreter is not None else None
        tree = Tree(spawn(spec, output) if pid is None else pid)
    tree.forwards = containers.forwards(spec.get("container"))  # a worker of an earlier version writes none
    return tree


def spawn(spec: dict[str, Any], output: LogFile | Terminal) -> int:
    """Start the job's first process, with its output to *output*, and return its pid.

    Raises:
        NotStarted: the process could not be started, or it is too late to start it; the message says which.

    """
    if time.monotonic() >= spec["start_before"]:
        raise NotStarted("lost", TOO_LATE)
    try:
        reader, answer = os.pipe()  # a successful exec closes it; otherwise it carries the reason
        me = os.getpid()
        pid = os.fork()
    except OSError as error:
        raise no_process(error) from error
    if pid == 0:
        try:
            execute(spec, output.take, answer, me)
        finally:
            os._exit(127)
    os.close(answer)
    output.begin()
    reason = answer_of(reader, pid, spec)
    if reason:
        os.waitpid(pid, 0)
        raise no_start(reason)
    return pid


def execute(spec: dict[str, Any], take_output: Callable[[], None], answer: int, parent: int) -> None:
    """Become the job's first process, in the child of *parent*. Write the reason into *answer* if that fails."""
    step, program = "cannot prepare the process", ""
    try:
        begin_child(parent)
        raise_open_files()
        if spec.get("oom_score_adj"):  # a worker of an earlier version writes none
            adjust_oom_score(spec["oom_score_adj"])
        os.umask(int(spec["umask"]))
        take_output()
        if spec["code"] is not None:
            step = "cannot unpack its code"
            os.mkdir(code.DIRECTORY, 0o700)
            code.unpack(os.open(code.BUNDLE, os.O_RDONLY | os.O_CLOEXEC), spec["code"])
        step = f"cannot enter the working directory {spec['cwd']}"
        os.chdir(spec["cwd"])  # can block for ever on a dead file server
        make_links(spec.get("outputs") or {}, spec["env"])  # a worker of an earlier version writes none
        if time.monotonic() >= spec["start_before"]:
            os.write(answer, f"0 {TOO_LATE}".encode())
            return
        argv, env = spec["argv"], spec["env"]
        if spec.get("container") is not None:
            step = "cannot start its container"
            argv, env = containers.of_spec(spec)
        program = argv[0]
        step = f"cannot start {program}"
        os.execvpe(program, argv, env)  # noqa: S606 - no shell on purpose
    except Exception as error:  # noqa: BLE001 - the shim reports any error
        reason = f"{getattr(error, 'errno', -1) or -1} {step}: {why(error, program)}"
        os.write(answer, reason.encode(errors="replace"))


def become(warm_interpreter: WarmInterpreter, spec: dict[str, Any], output: LogFile | Terminal) -> int | None:
    """Turn the warm interpreter *warm_interpreter* into the job's first process and return its pid.

    Returns None if the warm interpreter cannot become the job. In that case no code of the job has run.

    Raises:
        NotStarted: no process can start the job, or it is too late to start it; the message says which.

    """
    try:
        put("spec", json.dumps(spec), sync=False)  # with the port of the run
        reader, theirs = os.pipe()
    except OSError as error:
        answer = f"cold: {error.strerror}"
    else:
        if spec.get("oom_score_adj"):  # a worker of an earlier version writes none
            adjust_oom_score(spec["oom_score_adj"], warm_interpreter.pid)
        warm_interpreter.ask(os.getcwd(), output.log, theirs)
        os.close(theirs)
        answer = answer_of(reader, warm_interpreter.pid, spec)
    if answer == "ok":
        report_start("warm")
        output.begin()
        return warm_interpreter.pid
    warm_interpreter.end()
    if answer[:1].isdigit():  # an errno: a cold start would fail too
        raise no_start(answer)
    report_start(answer or "cold: the warm interpreter has ended")
    return None


def report_start(words: str) -> None:
    """Record in the file ``start`` whether the run started warm, or why not. Ignore write errors."""
    with contextlib.suppress(OSError):
        put("start", words, sync=False)


def answer_of(reader: int, pid: int, spec: dict[str, Any]) -> str:
    """Return what the job's process *pid* writes into a pipe until it starts.

    Raises:
        NotStarted: the run must end before the process has started.

    """
    with os.fdopen(reader, "rb") as pipe:
        wait(reader, spec, lambda: end_child(pid))
        return pipe.read().decode(errors="replace")


def wait(reader: int, spec: dict[str, Any], end: Callable[[], None]) -> None:
    """Wait until *reader* is readable: the job has started, or cannot. That can block on a dead file server.

    Raises:
        NotStarted: the run was cancelled or preempted, its heartbeat expired, or it has reached its time limit first.
            *end* was called to end the process.

    """
    until, since, limit_s = spec["start_before"], time.monotonic(), spec["time_limit_s"]
    request = PreemptRequest(0.0)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while not poll.poll(POLL_S * 1000):
        now, until = time.monotonic(), renewed_until(until)
        kind = asked_end()
        if not kind and limit_s is not None and now >= since + (extended() or limit_s):
            kind = "timed_out"
        if not kind and request.poll(read):  # it has nothing to save
            kind = "preempted"
        if not kind and now >= until:
            kind = "lost"
        if kind:
            end()
            raise NotStarted(kind.strip(), "its working directory or its program does not answer")
