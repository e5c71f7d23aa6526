"""Ctrl-C and SIGTERM: whoever measures is stopped wherever it is, and says so in one line.

Not every place that an exception comes through passes it on: a directory that cannot be removed on the way out puts
its own error in its stead. So it is kept in mind that somebody asked, and :func:`heed` tells.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: What a terminal sends for Ctrl-C, what ``timeout`` and systemd send, what a closed terminal leaves behind.
HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_asked: list[int] = []
_deaf: list[bool] = []


class Stopped(KeyboardInterrupt):
    """Somebody wants this to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        #: What a shell tells of who was ended by this signal.
        self.exit_code = 128 + number


@contextmanager
def heeding() -> Iterator[None]:
    """Raise :class:`Stopped` where a signal finds us. What was ignored before, as ``nohup`` has it, stays so."""
    before = {each: signal.getsignal(each) for each in HEEDED}
    hook = threading.excepthook
    _asked.clear()
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, _raise)
        yield
        heed()
    finally:
        if _asked:  # a thread whose store is gone has nothing to tell
            threading.excepthook = lambda _: None
        else:
            threading.excepthook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def not_now() -> Iterator[None]:
    """Put off what a signal asks for: what is cleaned up here must be cleaned up whole. It is raised afterwards."""
    _deaf.append(True)
    try:
        yield
    finally:
        _deaf.pop()
    if not _deaf:
        heed()


def heed() -> None:
    """Raise :class:`Stopped` if somebody has asked for it, also where it was lost on its way.

    Raises:
        Stopped: somebody has.

    """
    if _asked:
        raise Stopped(_asked[0])


def _raise(number: int, _frame: FrameType | None) -> None:
    _asked.append(number)
    if not _deaf:
        raise Stopped(number)
