"""Ctrl-C while a job is followed: it is deferred, so that no output is lost, and then the user is asked what to do."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from enum import Enum
from types import FrameType, TracebackType

import click

#: Time between two checks whether the job has ended, in seconds.
POLL_S = 0.3
#: Most bytes of an answer that are read.
ANSWER_BYTES = 1024
STDIN = 0


class CtrlC:
    """Records the first Ctrl-C, which ``check`` raises; the second one raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self._noted = False

    def __enter__(self) -> CtrlC:  # noqa: PYI034 - typing.Self is of 3.11
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:  # ignored under nohup or in the background of a script
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as the signal module calls it
        if self._noted:
            raise KeyboardInterrupt
        self._noted = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a Ctrl-C."""
        if self._noted:
            raise KeyboardInterrupt

    def forget(self) -> None:
        """Forget the recorded Ctrl-C."""
        self._noted = False


class Choice(Enum):
    """What to do after Ctrl-C."""

    CANCEL = "cancel"
    DETACH = "detach"
    GO_ON = "go on"
    #: Nothing: the job ended before an answer.
    OVER = "over"


#: First letter of the answer -> choice. Enter alone goes on.
_ANSWERS = {b"c": Choice.CANCEL, b"d": Choice.DETACH, b"g": Choice.GO_ON, b"": Choice.GO_ON}


def can_ask() -> bool:
    """Return whether standard input and standard error are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(job_id: int | str, has_ended: Callable[[], bool]) -> Choice:
    """Ask the user what to do after Ctrl-C: CANCEL for another Ctrl-C, OVER if the job *has_ended* meanwhile."""
    question = f"job {job_id}: [c]ancel it, [d]etach and let it run, or [g]o on? (Ctrl-C cancels it) "
    try:
        click.echo("", err=True)
        while True:
            choice = _answer(question, has_ended)
            if choice is not None:
                return choice
            click.echo("answer c, d or g", err=True)
    except KeyboardInterrupt:
        click.echo("", err=True)
        return Choice.CANCEL
    except OSError:  # the terminal is gone
        return Choice.DETACH


def _answer(question: str, has_ended: Callable[[], bool]) -> Choice | None:
    """Ask once and return the choice, or None if the answer is not valid."""
    click.echo(question, err=True, nl=False)
    while not select.select([STDIN], [], [], POLL_S)[0]:
        if has_ended():
            click.echo("", err=True)
            return Choice.OVER
    answer = os.read(STDIN, ANSWER_BYTES)  # a terminal returns one line
    if not answer:  # Ctrl-D
        click.echo("", err=True)
        return Choice.DETACH
    return _ANSWERS.get(answer.strip()[:1].lower())
