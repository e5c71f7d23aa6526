"""What somebody gives to ``run`` on standard input, and no job reads."""

from __future__ import annotations

import array
import fcntl
import os
import stat
import termios

from gpuqueue.console import say

STDIN = 0


def tell_unread() -> None:
    """Say so where something waits to be read: it was meant for the job, and will not get there."""
    if _holds_something():
        words = "what is on standard input does not go to the job, which reads nothing there"
        say("gpuqueue", f"{words}: put it into a file, and name that in its arguments")


def _holds_something() -> bool:
    """Return whether standard input is a pipe or a file with something unread; a terminal is for our own questions."""
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
