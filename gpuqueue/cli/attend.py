"""``attach``, and the second half of ``run``: a job's output as it comes, Ctrl-C, and its exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import click

from gpuqueue.cli.arrays import JobNameType, worst_code
from gpuqueue.cli.completing import live_ids
from gpuqueue.cli.ctrl_c import CtrlC
from gpuqueue.cli.held import tell_again, tell_away, tell_held
from gpuqueue.cli.leaving import leaving
from gpuqueue.cli.wait_line import WaitLine
from gpuqueue.client import Client
from gpuqueue.command import INTERRUPTED, put, say
from gpuqueue.errors import Refused, Unreachable
from gpuqueue.job import Job, JobState
from gpuqueue.logs import STDERR, TTY, LogTail
from gpuqueue.run import Run

CANCEL, DETACH, GO_ON = "cancel", "detach", "go on"


@click.command()
@click.argument("job_id", metavar="ID", type=JobNameType(), shell_complete=live_ids())
def attach(job_id: str) -> None:
    """Show a job's output while it runs, and return its exit code: as run does, for a job that is there already.

    It begins with the beginning of the newest run. Ctrl-C asks whether to cancel the job or to leave it running. Of a
    job that was started with run --pty, on its host, you sit at its terminal: keys go there; Enter ~ . leaves it.

    \b
    Examples:
      gpuqueue attach 12
      gpuqueue attach 12 && echo done
    """  # noqa: D301 - \b is click's mark for lines to keep
    with Client() as client:
        client.get(job_id)  # what is not there is told before anything else
        sys.exit(Attendance(client, job_id, ours=False).to_the_end())


def _is_at_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _may_sit_at(log: Path | None) -> bool:
    """Return whether we are at a terminal, and the run whose log lies at *log* has one to type on by now."""
    return _is_at_a_terminal() and log is not None and os.path.lexists(log.with_name(TTY))


class TerminalThere(Exception):
    """The job that is attended has a terminal that can be typed on now."""


class Attendance:
    """Somebody who stays with a job until its end. *ours*: they have just submitted it, and it goes where they go."""

    def __init__(self, client: Client, job_id: int | str, *, ours: bool) -> None:
        self._client = client
        self._job_id = job_id
        self._ours = ours
        self._tail = LogTail()
        self._errors = LogTail(STDERR)
        self._line = WaitLine(client)
        self._ctrl_c = CtrlC()
        self._cancelled = self._unreadable = self._apart = self._is_typed = self._may_sit = self._is_told = False
        #: The log of the run at whose terminal we have sat, or could not.
        self._sat: Path | None = None

    def to_the_end(self) -> int:
        """Show what the job writes, and return its exit code."""
        with self._ctrl_c, leaving(self._tell_it_runs_on):
            while True:
                try:
                    return self._attend()
                except KeyboardInterrupt:
                    self._interrupted()
                except TerminalThere:
                    self._sit()
                finally:
                    self._line.clear()

    def _attend(self) -> int:
        client, job_id = self._client, self._job_id
        if not self._unreadable:
            try:
                for chunk in client.follow(
                    job_id,
                    self._tail,
                    held=self._held,
                    seen=self._seen,
                    again=self._again,
                    away=self._away,
                    whole=self._ours,
                ):
                    self._line.clear()
                    put(chunk)
                    self._ctrl_c.check()
                    self._look_for_terminal()
                self._put_errors()
            except Refused as refused:  # no log: it was cancelled while it waited, or the log lies on another host
                self._unreadable = True
                say("gpuqueue", str(refused))
                if self._is_typed:
                    say("gpuqueue", f"nobody can type to it from here: gpuqueue attach {job_id} on its own host")
        for job in client.watch(job_id, away=self._away):
            self._seen(job)
        record = client.wait(job_id, away=self._away)
        last = record.last_run
        why = record.job.because or (last.ending if last else None)
        how = f" ({why})" if why else ""
        say("gpuqueue", f"job {job_id} {record.job.state}{how}")
        return worst_code(client, record)

    def _seen(self, job: Job) -> None:
        self._apart = job.spec.separate_stderr
        self._put_errors()
        self._line.seen(job)
        self._ctrl_c.check()
        self._is_typed = job.spec.pty is not None and job.spec.pty.typed
        self._may_sit = self._is_typed and job.state is JobState.RUNNING
        if self._may_sit and job.host == self._client.settings.host and _is_at_a_terminal() and not self._is_told:
            self._is_told = True  # before it shows anything: a prompt must stay the last that stands there
            self._line.clear()
            say("gpuqueue", f"this is the terminal of job {self._job_id}: Enter ~ . leaves it, and it runs on")
        self._look_for_terminal()

    def _look_for_terminal(self) -> None:
        """Raise TerminalThere as soon as there is one at which nobody of us has sat yet."""
        log = self._tail.path
        if self._may_sit and log not in {None, self._sat} and _may_sit_at(log):
            raise TerminalThere

    def _sit(self) -> None:
        """Type on the job's terminal, until it ends or one leaves it."""
        from gpuqueue.cli.seat import Seat  # noqa: PLC0415 - only for a terminal that is typed on

        self._sat = self._tail.path
        self._line.clear()
        try:
            seat = Seat(self._sat or Path())
        except OSError as error:
            say("gpuqueue", f"nobody can type to job {self._job_id} from here: {error.strerror}")
            return
        if seat.sit(self._tail, put):
            click.echo("", err=True)
            self._leave(f"it runs on: gpuqueue attach {self._job_id}")

    def _held(self, job: Job) -> None:
        self._line.clear()
        tell_held(job)

    def _away(self, error: Unreachable) -> None:
        self._line.clear()
        tell_away(error)

    def _put_errors(self) -> None:
        """Pass on what the job has written to standard error since, if it keeps that apart."""
        for path in (self._errors.path, self._tail.path) if self._apart else ():  # the last run's rest, then this one's
            self._errors.turn_to(path)
            for chunk in self._errors.rest():
                self._line.clear()
                put(chunk, err=True)

    def _again(self, run: Run) -> None:
        self._line.clear()
        tell_again(run)

    def _interrupted(self) -> None:
        """Ask what Ctrl-C was meant to say, and do that. Where nobody can be asked, what one has submitted is ended."""
        self._line.clear()
        if self._cancelled:
            self._leave("it is being cancelled")
        choice = self._choice()
        self._ctrl_c.forget()
        if choice == DETACH:
            self._leave(f"it runs on: gpuqueue attach {self._job_id}")
        if choice == GO_ON:
            say("gpuqueue", f"job {self._job_id} goes on")
        if choice == CANCEL:
            self._cancelled = True
            with contextlib.suppress(Refused):  # it has just ended by itself
                self._client.cancel(self._job_id)

    def _choice(self) -> str:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return CANCEL if self._ours else DETACH
        question = f"job {self._job_id}: [c]ancel it, [d]etach and let it run, or [g]o on? (Ctrl-C cancels it) "
        try:
            click.echo(f"\n{question}", err=True, nl=False)
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            click.echo("", err=True)
            return CANCEL
        if not answer:  # Ctrl-D, or the terminal is gone
            click.echo("", err=True)
            return DETACH
        return {"c": CANCEL, "d": DETACH}.get(answer.strip()[:1].lower(), GO_ON)

    def _tell_it_runs_on(self) -> None:
        say("gpuqueue", f"job {self._job_id}: it runs on: gpuqueue attach {self._job_id}")

    def _leave(self, words: str) -> None:
        say("gpuqueue", f"job {self._job_id}: {words}")
        sys.exit(INTERRUPTED)
