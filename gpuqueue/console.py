"""Runs a command line. Whatever goes wrong becomes one line on stderr and a documented exit code.

The line may quote what somebody typed, called a file or wrote into a store. So it is made plain: it stays one line, and
nothing in it is obeyed by a terminal.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys

import click

from gpuqueue.errors import GpuQueueError
from gpuqueue.text.sanitize import in_one_line

#: What one stayed with was left, and runs on.
LEFT = 7
#: Ended by Ctrl-C, and by a reader that has gone, as the shell reports SIGINT and SIGPIPE.
INTERRUPTED, READER_GONE = 130, 141
#: The class of what click puts in the place of standard output when nobody reads it any more. (Celery puts something
#: there as well.)
_READER_HAS_GONE = "PacifyFlushWrapper"
#: Exit code of a mistake that only the operating system knows.
FAILED = 1
#: Characters that are quoted of a word that an option does not take.
MOST_TYPED = 60
#: Mistakes at writing; where a file of ours is written, its name is told.
_OF_THE_OUTPUT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def run(group: click.Group, program: str) -> int:
    """Run *group* on this process's command line and return the exit code."""
    _open_what_is_closed()
    _let_everything_be_printed()
    try:
        code = _ended(group, program)
        sys.stdout.flush()
    except click.exceptions.Abort:
        code = say(program, "interrupted", INTERRUPTED)
    except click.ClickException as error:
        code = say(program, _in_words(error, _asked_for(group, program)), error.exit_code)
    except GpuQueueError as error:
        code = say(program, str(error), error.exit_code)
    except BrokenPipeError:  # the reader (head, less) has gone; that is no mistake of anybody
        _close_stdout()
        code = READER_GONE
    except OSError as error:  # a full disk, a directory that is not ours
        code = say(program, _said_by_the_system(error), FAILED)
        with contextlib.suppress(OSError):
            _close_stdout()  # nothing more can be said there
    return code


def _ended(group: click.Group, program: str) -> int:
    """Run *group*; a command ends by returning, or by sys.exit with a code of its own."""
    try:
        # None leaves colour to click, which has it on a terminal only. See no-color.org.
        code = group.main(prog_name=program, standalone_mode=False, color=False if os.environ.get("NO_COLOR") else None)
    except SystemExit as ended:
        if type(sys.stdout).__name__.endswith(
            _READER_HAS_GONE
        ):  # click has met a reader that has gone, and makes it a 1
            sys.stdout, sys.stderr = sys.__stdout__ or sys.stdout, sys.__stderr__ or sys.stderr
            raise BrokenPipeError from None
        code = ended.code
    return code if isinstance(code, int) else 0


def _said_by_the_system(error: OSError) -> str:
    """Return the mistake and its place; of one without a place that a full disk makes, it is the output's."""
    words = error.strerror or str(error)
    if isinstance(error.filename, (str, bytes)):
        return f"{words}: {os.fsdecode(error.filename)}"
    if error.errno in _OF_THE_OUTPUT:
        return f"what was to be printed cannot be written: {words}: free some space there, or print it elsewhere"
    return words


def say(program: str, message: str, code: int = 0) -> int:
    """Say *message* in one line on stderr; return *code*."""
    with contextlib.suppress(OSError):  # where stderr is gone, the exit code must do
        click.echo(f"{program}: {in_one_line(message)}", err=True)
    return code


def put(chunk: bytes, *, err: bool = False) -> None:
    """Write all of *chunk* to standard output (or standard error) as it is, at once.

    Where Python does not buffer (PYTHONUNBUFFERED), a write that a signal interrupts takes only a part.
    """
    stream = (sys.stderr if err else sys.stdout).buffer
    left = memoryview(chunk)
    while left:
        left = left[stream.write(left) :]
    stream.flush()


def sentence(words: str) -> str:
    """Return *words* with something at their end that lets another sentence follow."""
    return words if words.endswith((".", "?", "!", ".)", "?)")) else f"{words}."


def _asked_for(group: click.Group, program: str) -> str:
    """Return the command that was typed, as far as it is one: click does not always tell where it gave up."""
    name = next(iter(sys.argv[1:]), "")
    return f"{program} {name}" if name in group.list_commands(click.Context(group)) else program


def _in_words(error: click.ClickException, asked_for: str) -> str:
    """Return what click has to say in our way: one line that ends with what to do."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return f"name a command: see {asked_for} --help"
    if isinstance(error, click.BadParameter) and error.param is not None:
        choice = _not_taken(error.message, error.param)
        if choice is not None:
            return choice
    words = " ".join(error.format_message().split())  # click breaks lines, and we have one
    if not isinstance(error, click.UsageError):
        return words
    return f"{sentence(words)} See {error.ctx.command_path if error.ctx else asked_for} --help"


def _not_taken(message: str, param: click.Parameter) -> str | None:
    """Return what to say of a word that is none of a parameter's choices, or no such number; None: of neither.

    Here for every command: what was typed stands in click's *message* alone.
    """
    typed, _, rest = message.rpartition(" is not ")
    if not rest:
        return None
    typed = typed if len(typed) <= MOST_TYPED else f"{typed[: MOST_TYPED - 1]}…"
    name = max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name
    if isinstance(param.type, click.Choice):
        *most, last = map(str, param.type.choices)
        return f"{name}: {typed} cannot be: say {' or '.join(filter(None, (', '.join(most), last)))}"
    if isinstance(param.type, (click.types.IntParamType, click.types.FloatParamType)):
        noun = "a number" if isinstance(param.type, click.types.FloatParamType) else "a whole number"
        least, most_of_all = (getattr(param.type, bound, None) for bound in ("min", "max"))
        bounds = ", such as 2" if least is None or most_of_all is None else f" from {least} to {most_of_all}"
        return f"{name}: {typed} cannot be: give {noun}{bounds}"
    return None


def _open_what_is_closed() -> None:
    """Let what is said to a closed standard stream go nowhere: else the next file or socket would get its number.

    A shell's ``>&-`` closes one. Python has None in its place then, and what is asked for must be done all the same.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _close_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _let_everything_be_printed() -> None:
    """Replace what the terminal's encoding cannot say: a Latin-1 terminal must not end a command with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
