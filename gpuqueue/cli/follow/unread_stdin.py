"""The warning about standard input of ``run``, which no job reads."""

from __future__ import annotations

import array
import fcntl
import os
import stat
import termios

from gpuqueue.console import print_message

STDIN = 0


def report_unread() -> None:
    """Warn if standard input has unread data: the job does not receive it."""
    if _holds_something():
        words = "the job does not read standard input"
        print_message("gpuqueue", f"{words}: put the data into a file, and pass its name as an argument")


def _holds_something() -> bool:
    """Return whether standard input is a pipe or a file with unread data; a terminal is for prompts."""
    try:
        kind = os.fstat(STDIN)
        if stat.S_ISREG(kind.st_mode):
            return os.lseek(STDIN, 0, os.SEEK_CUR) < kind.st_size
        if not stat.S_ISFIFO(kind.st_mode):
            return False
        waiting = array.array("i", [0])
        fcntl.ioctl(STDIN, termios.FIONREAD, waiting)
    except OSError:
        return False
    return waiting[0] > 0
