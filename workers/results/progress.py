"""Reports that packing goes on, and notices that nobody reads the archive any more. Standard library only."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable

#: How long packing may take without progress, in seconds: a reader that does not read, a file server that does not
#: answer, or a pattern that takes for ever to match.
STALL_S = 60.0
#: Time between two reports, in seconds.
EVERY_S = 1.0


def stalled() -> str:
    """Return the message for work that was ended because it made no progress."""
    return (
        f"packing made no progress for {STALL_S:.0f} s: the reader does not read, a disk does not answer, or a pattern "
        "is too complicated"
    )


class Progress:
    """Is called for each step, and calls *report* at most once a second."""

    def __init__(self, output: int, report: Callable[[], object]) -> None:
        self._report = report
        self._poll = select.poll()
        self._poll.register(output, 0)  # errors and the end of the reader are always reported
        self._next_s = 0.0

    def __call__(self) -> None:
        """Report a step.

        Raises:
            BrokenPipeError: the reader of the archive is gone.

        """
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        self._report()
        if self._poll.poll(0):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
