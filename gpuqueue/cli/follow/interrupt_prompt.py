"""What Ctrl-C was meant to say: the question to whoever stays with a job. It does not outlast the job."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from enum import Enum

import click

#: Time between two looks whether the job has ended, in seconds.
LOOK_S = 0.3
#: More than anybody answers, in bytes.
ANSWER_BYTES = 1024
STDIN = 0


class Choice(Enum):
    """What is to be done."""

    CANCEL = "cancel"
    DETACH = "detach"
    GO_ON = "go on"
    #: Nothing: the job ended before anybody answered.
    OVER = "over"


#: By their first letter. Enter alone changes nothing.
_ANSWERS = {b"c": Choice.CANCEL, b"d": Choice.DETACH, b"g": Choice.GO_ON, b"": Choice.GO_ON}


def can_ask() -> bool:
    """Return whether there is somebody who can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(job_id: int | str, has_ended: Callable[[], bool]) -> Choice:
    """Ask, and return the answer; a Ctrl-C is one as well. The question is taken back when the job *has_ended*."""
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
    """Ask once; return what was answered, None where that says nothing."""
    click.echo(question, err=True, nl=False)
    while not select.select([STDIN], [], [], LOOK_S)[0]:
        if has_ended():
            click.echo("", err=True)
            return Choice.OVER
    answer = os.read(STDIN, ANSWER_BYTES)  # a terminal gives one line
    if not answer:  # Ctrl-D
        click.echo("", err=True)
        return Choice.DETACH
    return _ANSWERS.get(answer.strip()[:1].lower())
