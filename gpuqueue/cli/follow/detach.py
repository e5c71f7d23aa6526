"""Leaving a job after a signal or a closed pipe, with a message that the job runs on."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

#: Signals that end this process: ``kill``, and a closed terminal.
_ENDS = (signal.SIGTERM, signal.SIGHUP)


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
