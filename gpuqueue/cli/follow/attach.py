"""The ``attach`` command, and the code by which it and ``run`` follow a job: output, Ctrl-C and exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from gpuqueue.cli.follow.ctrl_c import Choice, CtrlC, ask, can_ask
from gpuqueue.cli.follow.status_line import report_again, report_away, report_end, report_held, report_state
from gpuqueue.cli.follow.updated_line import WaitLine
from gpuqueue.cli.options.job_id import job_id
from gpuqueue.cli.output.arrays import worst_code
from gpuqueue.client import Client
from gpuqueue.console import INTERRUPTED, LEFT, print_message, put
from gpuqueue.errors import GpuQueueError, HostUnreachable, Refused, Unreachable
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.model.run import Run
from gpuqueue.system.logs import TTY
from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    from gpuqueue.client.terminal import JobTerminal

#: Signals that end this process: ``kill``, and a closed terminal.
_ENDS = (signal.SIGTERM, signal.SIGHUP)
#: First byte of every sequence that changes a terminal's state, such as its colour.
ESCAPE = b"\x1b"
#: Resets colours and shows the cursor.
RESET = b"\x1b[0m\x1b[?25h"


@click.command()
@job_id
def attach(job_id: str) -> None:
    """Show the output of a job until it ends, and return its exit code, like run.

    The output starts at the beginning of the newest run. Ctrl-C asks whether to cancel the job or leave it running.
    Your terminal is attached to a job of run --pty: it gets all keys; Enter ~ . detaches. Exit code 7 means that you
    detached and the job continues.

    \b
    Examples:
      gpuqueue attach 12
      gpuqueue attach 12 && echo done
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client, CtrlC() as ctrl_c:
        client.jobs.get(job_id)  # report an unknown job first
        sys.exit(Follower(client, job_id, ctrl_c, ours=False).to_the_end())


def _accepts_input(log: object) -> bool:
    """Return whether this process has a terminal, and the run with the log *log* may have one that accepts input.

    Behind a service the log is no path, and only the service knows whether the run has a terminal.
    """
    is_at_a_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_at_a_terminal and (not isinstance(log, Path) or os.path.lexists(log.with_name(TTY)))


class TerminalFound(Exception):
    """Raised when the job's terminal accepts input; *unshown* is output that was read and not shown yet."""

    def __init__(self, unshown: bytes) -> None:
        self.unshown = unshown


class Follower:
    """Follows a job in the foreground until its end.

    *ours* means that this command submitted the job: Ctrl-C cancels it if the user cannot be asked, or is not (*asks*).
    *ctrl_c* is already entered, so that an earlier Ctrl-C counts too.
    """

    def __init__(self, client: Client, job_id: int | str, ctrl_c: CtrlC, *, ours: bool, asks: bool = True) -> None:
        self._client = client
        self._job_id = job_id
        self._ours, self._asks = ours, asks
        self._tail = client.logs.tail()
        self._errors = client.logs.tail(stderr=True)
        self._line = WaitLine(client)
        self._shown = Shown()
        self._ctrl_c = ctrl_c
        self._cancelled = self._unreadable = self._apart = self._is_typed = self._may_sit = self._is_reported = False
        self._job: Job | None = None
        #: Output to show once the terminal is attached; None if there is no terminal to attach.
        self._unshown: bytes | None = None
        #: Log of the run whose terminal was attached, or could not be.
        self._attached_log: object = None

    def to_the_end(self) -> int:
        """Show the job's output and return its exit code."""
        with leaving(self._report_detached):
            while True:
                try:
                    self._attach_terminal()
                    return self._follow()
                except KeyboardInterrupt:
                    self._interrupted()
                except TerminalFound as there:
                    self._unshown = there.unshown
                finally:
                    self._line.clear()

    def _follow(self) -> int:
        if not self._unreadable:
            try:
                self._show_output()
            except Refused as refused:  # no log: the job was cancelled while it waited, or the log is on another host
                self._unreadable = True
                self._report_unreadable(refused)
        self._watch()
        record = self._client.jobs.wait(self._job_id, away=self._away)
        self._make_room()
        report_end(self._job_id, record)
        return worst_code(self._client, record)

    def _show_output(self) -> None:
        """Show the output of the job's runs until the last one has ended.

        Raises:
            Refused: there is no output that can be read here.
            TerminalFound: the job has a terminal.

        """
        for chunk in self._client.logs.follow(
            self._job_id,
            self._tail,
            held=self._held,
            seen=self._seen,
            again=self._again,
            away=self._away,
            whole=self._ours,
        ):
            self._line.clear()
            self._find_terminal(chunk)
            self._shown.put(chunk)
            self._ctrl_c.check()
        self._put_errors()

    def _watch(self) -> None:
        """Wait for the job's end, and report its states if no output shows how it goes on."""
        reported = None
        for job in self._client.jobs.watch(self._job_id, away=self._away):
            self._seen(job)
            if self._unreadable and not job.state.is_end and job.state is not reported:
                reported = job.state
                self._make_room()
                report_state(self._job_id, job)

    def _report_unreadable(self, refused: Refused) -> None:
        """Print why no output is shown, unless the job never ran: then its end says enough."""
        job = self._job
        has_ended = job is not None and job.state.is_end
        if job is not None and has_ended and not job.attempt and job.spec.array is None:
            return
        self._make_room()
        instead = "" if has_ended else ". Its end and its exit code are still reported here"
        print_message("gpuqueue", f"{refused}{instead}")
        if self._is_typed and not has_ended:
            print_message(
                "gpuqueue", f"you cannot type to it from here: gpuqueue attach {self._job_id} on its own host"
            )

    def _seen(self, job: Job) -> None:
        self._job = job
        self._apart = job.spec.separate_stderr
        self._put_errors()
        self._line.seen(job)
        self._ctrl_c.check()
        self._is_typed = job.spec.pty is not None and job.spec.pty.typed
        self._may_sit = self._is_typed and job.state is JobState.RUNNING
        self._find_terminal()

    def _find_terminal(self, unshown: bytes = b"") -> None:
        """Raise TerminalFound if the run has a terminal that this command has not attached yet.

        Output shows that the job runs even if its last known state is STARTING. So the hint about keys is printed
        before that output.
        """
        log = self._tail.path
        was_starting = self._job is not None and self._job.state in {JobState.QUEUED, JobState.STARTING}
        begun = self._may_sit or (bool(unshown) and self._is_typed and was_starting)
        if begun and log not in {None, self._attached_log} and _accepts_input(log):
            raise TerminalFound(unshown)

    def _attach_terminal(self) -> None:
        """Attach the job's terminal, if there is one, until it ends or the user detaches.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed before the terminal was attached.

        """
        from gpuqueue.cli.follow.terminal import AttachedTerminal  # noqa: PLC0415 - only for an attached terminal

        unshown, self._unshown = self._unshown, None
        if unshown is None:
            return
        path = self._tail.path
        self._line.clear()
        terminal = self._open_terminal()
        if terminal is None:  # the run may just have ended
            self._attached_log = path
            self._shown.put(unshown)
            return

        def begin() -> None:
            nonlocal unshown
            self._ctrl_c.check()
            self._explain_keys()  # before any output, so that a prompt of the job stays the last text
            self._shown.put(unshown or b"")
            unshown = b""

        try:
            is_left = AttachedTerminal(terminal).follow(self._shown.put, begin)
        except KeyboardInterrupt:
            self._shown.put(unshown)
            raise
        self._attached_log = path
        if is_left:
            self._leave(f"it runs on: gpuqueue attach {self._job_id}", LEFT)

    def _open_terminal(self) -> JobTerminal | None:
        """Open the job's terminal. Return None, and say why if it is refused, if there is none."""
        try:
            return self._client.logs.terminal(self._job_id, self._tail)
        except Refused as refused:
            print_message("gpuqueue", str(refused))
        except HostUnreachable as away:
            print_message("gpuqueue", f"{away}: you cannot type now, gpuqueue attach {self._job_id} tries it again")
        return None

    def _explain_keys(self) -> None:
        """Print once how to leave the terminal."""
        if self._is_reported:
            return
        self._is_reported = True
        words = f"this is the terminal of job {self._job_id}: Enter ~ . leaves it, and it runs on"
        click.echo(f"gpuqueue: {words}\r", err=True)  # raw mode: a newline alone does not return the cursor

    def _held(self, job: Job) -> None:
        self._make_room()
        if not self._ours or job.reason is not WaitReason.CANNOT_START:
            report_held(job)
            return
        with contextlib.suppress(Refused):  # somebody released or cancelled it
            self._client.jobs.cancel(self._job_id)  # mostly a typing error in the command
        print_message("gpuqueue", f"job {job.label} was cancelled: {plain(job.because or 'no host can start it')}")
        sys.exit(1)

    def _away(self, error: Unreachable) -> None:
        self._make_room()
        report_away(error)

    def _put_errors(self) -> None:
        """Show new output of the job's standard error, if it has a file of its own."""
        for path in (self._errors.path, self._tail.path) if self._apart else ():  # rest of the last run, then this run
            self._errors.turn_to(path)
            for chunk in self._errors.rest():
                self._line.clear()
                self._shown.put(chunk, err=True)

    def _again(self, run: Run) -> None:
        self._make_room()
        report_again(self._job_id, run)

    def _interrupted(self) -> None:
        """Ask what to do after Ctrl-C, and do it; without a prompt, cancel a job that this command submitted."""
        self._make_room()
        if self._cancelled:
            self._leave("it is being cancelled", INTERRUPTED)
        unasked = Choice.CANCEL if self._ours else Choice.DETACH
        choice = ask(self._job_id, self._has_ended) if self._asks and can_ask() else unasked
        self._ctrl_c.forget()
        if choice is Choice.DETACH:
            self._leave(f"it runs on: gpuqueue attach {self._job_id}", LEFT)
        if choice is Choice.GO_ON:
            print_message("gpuqueue", f"job {self._job_id} goes on")
        if choice is Choice.CANCEL:
            self._cancelled = True
            with contextlib.suppress(Refused):  # the job has just ended
                self._client.jobs.cancel(self._job_id)

    def _has_ended(self) -> bool:
        with contextlib.suppress(GpuQueueError):  # the store may not answer
            return self._client.jobs.get(self._job_id).state.is_end
        return False

    def _make_room(self) -> None:
        """Clear the wait line and finish the job's output, so that a message starts on a line of its own."""
        self._line.clear()
        self._shown.finish()

    def _report_detached(self) -> None:
        self._make_room()
        print_message("gpuqueue", f"job {self._job_id}: it runs on: gpuqueue attach {self._job_id}")

    def _leave(self, words: str, code: int) -> None:
        self._make_room()
        print_message("gpuqueue", f"job {self._job_id}: {words}")
        sys.exit(code)


class _Signalled(BaseException):
    """Raised by a signal that ends this process."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextlib.contextmanager
def leaving(report: Callable[[], None]) -> Iterator[None]:
    """Call *report* before a signal or a closed pipe ends this process; ignored signals stay ignored (nohup)."""
    before = {number: signal.getsignal(number) for number in _ENDS}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        yield
    except _Signalled as signalled:
        with contextlib.suppress(OSError):  # the terminal is gone
            report()
        sys.exit(128 + signalled.number)
    except BrokenPipeError:
        report()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as the signal module calls it
    raise _Signalled(number)


class Shown:
    """Passes output on unchanged, and tracks whether it may have left colours or an unfinished line."""

    def __init__(self) -> None:
        self._is_coloured = self._is_open = False

    def put(self, chunk: bytes, *, err: bool = False) -> None:
        """Write *chunk* to standard output, or to standard error."""
        put(chunk, err=err)
        if chunk and (sys.stderr if err else sys.stdout).isatty():
            self._is_coloured = self._is_coloured or ESCAPE in chunk
            self._is_open = not chunk.endswith(b"\n")

    def finish(self) -> None:
        """Reset the terminal and finish an open line, so that a message can follow."""
        left = (RESET if self._is_coloured else b"") + (b"\r\n" if self._is_open else b"")
        self._is_coloured = self._is_open = False
        if left and sys.stderr.isatty():
            put(left, err=True)
