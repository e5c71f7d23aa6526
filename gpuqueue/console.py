"""Runs a command line. Every error becomes one line on stderr and a documented exit code.

The line may quote untrusted text: arguments, file names, values from the store. It is sanitized, so that it stays one
line and holds no terminal control characters.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import time

import click

from gpuqueue.errors import GpuQueueError
from gpuqueue.text.sanitize import in_one_line

#: Exit code when the user detached from a job that continues to run.
LEFT = 7
#: Exit codes after Ctrl-C and after the reader of the output has closed it, as a shell reports SIGINT and SIGPIPE.
INTERRUPTED, READER_GONE = 130, 141
#: Name of the class with which click replaces standard output when its reader has gone. Celery replaces standard output
#: as well.
_READER_HAS_GONE = "PacifyFlushWrapper"
#: Exit code of an error from the operating system.
FAILED = 1
#: The years that a clock may show. Others are named where a call of the system fails.
PLAUSIBLE_YEARS = range(2020, 2200)
#: Longest quote of a value that an option refuses, in characters.
MOST_TYPED = 60
#: Errors of a write. An error without a file name comes from writing the output.
_OF_THE_OUTPUT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def run(group: click.Group, program: str) -> int:
    """Run *group* on this process's command line and return the exit code."""
    _open_closed_streams()
    _replace_unprintable()
    try:
        code = _ended(group, program)
        sys.stdout.flush()
    except click.exceptions.Abort:
        code = print_message(program, "interrupted", INTERRUPTED)
    except click.ClickException as error:
        code = print_message(program, _in_words(error, _asked_for(group, program)), error.exit_code)
    except GpuQueueError as error:
        code = print_message(program, str(error), error.exit_code)
    except BrokenPipeError:  # the reader (head, less) has gone, which is no error
        _close_stdout()
        code = READER_GONE
    except OSError as error:  # such as a full disk, or a directory without permission
        code = print_message(program, _system_message(error), FAILED)
        with contextlib.suppress(OSError):
            _close_stdout()  # else Python's flush at exit would fail again
    except OverflowError as error:  # such as a clock after the year 2262
        if not clock_hint():
            raise
        code = print_message(program, f"the time cannot be read: {error}{clock_hint()}", FAILED)
    return code


def _ended(group: click.Group, program: str) -> int:
    """Run *group* and return its exit code. A command either returns or calls ``sys.exit`` with its own code."""
    try:
        # With None, click uses colour on a terminal only. See no-color.org.
        code = group.main(prog_name=program, standalone_mode=False, color=False if os.environ.get("NO_COLOR") else None)
    except SystemExit as ended:
        if type(sys.stdout).__name__.endswith(_READER_HAS_GONE):  # click exits with 1 when the reader has gone
            sys.stdout, sys.stderr = sys.__stdout__ or sys.stdout, sys.__stderr__ or sys.stderr
            raise BrokenPipeError from None
        code = ended.code
    return code if isinstance(code, int) else 0


def _system_message(error: OSError) -> str:
    """Return the message and the path of *error*. Without a path, an error of a full disk concerns the output."""
    words = error.strerror or str(error)
    if isinstance(error.filename, (str, bytes)):
        return f"{words}: {os.fsdecode(error.filename)}"
    if error.errno in _OF_THE_OUTPUT:
        return f"the output cannot be written: {words}: free some space there, or print it elsewhere"
    return f"the system refused an operation of {_place_of(error)}: {words}{clock_hint()}"


def _place_of(error: BaseException) -> str:
    """Return the function in which *error* was raised, for an error that names nothing else."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return (
        "gpuqueue" if place is None else f"{place.tb_frame.f_globals.get('__name__')}.{place.tb_frame.f_code.co_name}"
    )


def clock_hint() -> str:
    """Return a hint if the clock of this process is far off, else nothing. Many calls of the system fail then."""
    try:
        year = time.gmtime(time.time()).tm_year
    except (OverflowError, OSError, ValueError):
        return ". The clock here is beyond what Python can count: set it, or run without faketime"
    return "" if year in PLAUSIBLE_YEARS else f". The clock here is in the year {year}: set it, or run without faketime"


def print_message(program: str, message: str, code: int = 0) -> int:
    """Print *message* in one line on stderr and return *code*."""
    with contextlib.suppress(OSError):  # without stderr only the exit code is left
        click.echo(f"{program}: {in_one_line(message)}", err=True)
    return code


def put(chunk: bytes, *, err: bool = False) -> None:
    """Write all of *chunk* unchanged to standard output, or to standard error with *err*, and flush it.

    With PYTHONUNBUFFERED, a write that a signal interrupts may write only a part.
    """
    stream = (sys.stderr if err else sys.stdout).buffer
    left = memoryview(chunk)
    while left:
        left = left[stream.write(left) :]
    stream.flush()


def sentence(words: str) -> str:
    """Return *words* as a sentence, with a full stop if it has no closing punctuation."""
    return words if words.endswith((".", "?", "!", ".)", "?)")) else f"{words}."


def _asked_for(group: click.Group, program: str) -> str:
    """Return the program and the typed command, if it exists. Not every error of click names its command."""
    name = next(iter(sys.argv[1:]), "")
    return f"{program} {name}" if name in group.list_commands(click.Context(group)) else program


def _in_words(error: click.ClickException, asked_for: str) -> str:
    """Return click's *error* as one line that ends with what to do."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return f"name a command: see {asked_for} --help"
    if isinstance(error, click.BadParameter) and error.param is not None:
        choice = _invalid_value(error.message, error.param)
        if choice is not None:
            return choice
    words = " ".join(error.format_message().split())  # click's message may have several lines
    if not isinstance(error, click.UsageError):
        return words
    return f"{sentence(words)} See {error.ctx.command_path if error.ctx else asked_for} --help"


def _invalid_value(message: str, param: click.Parameter) -> str | None:
    """Return the error message for a value that is not one of *param*'s choices, or no valid number; else None.

    The typed value is taken from click's *message*, which alone holds it.
    """
    typed, _, rest = message.rpartition(" is not ")
    if not rest:
        return None
    typed = typed if len(typed) <= MOST_TYPED else f"{typed[: MOST_TYPED - 1]}…"
    name = max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name
    if isinstance(param.type, click.Choice):
        *most, last = map(str, param.type.choices)
        return f"{name}: {typed} is not valid: use {' or '.join(filter(None, (', '.join(most), last)))}"
    if isinstance(param.type, (click.types.IntParamType, click.types.FloatParamType)):
        noun = "a number" if isinstance(param.type, click.types.FloatParamType) else "a whole number"
        least, most_of_all = (getattr(param.type, bound, None) for bound in ("min", "max"))
        bounds = ", such as 2" if least is None or most_of_all is None else f" from {least} to {most_of_all}"
        return f"{name}: {typed} is not valid: give {noun}{bounds}"
    return None


def _open_closed_streams() -> None:
    """Open ``/dev/null`` for each closed standard stream, so that no later file or socket gets its number.

    A shell closes a stream with ``>&-``, and Python then sets it to None. The command must still work.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _close_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace_unprintable() -> None:
    """Replace characters that the output's encoding lacks, so that printing never raises UnicodeEncodeError."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
