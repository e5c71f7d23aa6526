"""Leaving a job for a signal, or because nobody reads any more: it runs on, and that is said."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

#: What ends us: somebody's kill, a terminal that was closed.
_ENDS = (signal.SIGTERM, signal.SIGHUP)


class _Signalled(BaseException):
    """A signal came, and wants us to end."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextlib.contextmanager
def leaving(tell: Callable[[], None]) -> Iterator[None]:
    """Call *tell* before a signal ends us, or a reader that has gone. A signal that is ignored stays so (nohup)."""
    before = {number: signal.getsignal(number) for number in _ENDS}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        yield
    except _Signalled as signalled:
        with contextlib.suppress(OSError):  # the terminal is gone
            tell()
        sys.exit(128 + signalled.number)
    except BrokenPipeError:
        tell()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as the signal module calls it
    raise _Signalled(number)
