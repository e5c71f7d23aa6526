"""Ctrl-C and SIGTERM end a measurement at any point, with one line.

Some code replaces an exception on its way: a directory that cannot be removed raises its own error instead. So the
request is remembered, and :func:`heed` raises it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: The signals of Ctrl-C, of ``timeout`` and systemd, and of a closed terminal.
HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_asked: list[int] = []
_deaf: list[bool] = []


class Stopped(KeyboardInterrupt):
    """A signal asked the measurement to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        #: The exit code by which a shell reports this signal.
        self.exit_code = 128 + number


@contextmanager
def heeding() -> Iterator[None]:
    """Raise :class:`Stopped` when a signal arrives. Signals that were ignored before, as by ``nohup``, stay ignored."""
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
        if _asked:  # errors of threads whose store is gone are not shown
            threading.excepthook = lambda _: None
        else:
            threading.excepthook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def not_now() -> Iterator[None]:
    """Delay a signal's exception until the end of the block, so that a cleanup is complete."""
    _deaf.append(True)
    try:
        yield
    finally:
        _deaf.pop()
    if not _deaf:
        heed()


def heed() -> None:
    """Raise :class:`Stopped` if a signal arrived, even if its exception was lost.

    Raises:
        Stopped: a signal arrived.
    """
    if _asked:
        raise Stopped(_asked[0])


def _raise(number: int, _frame: FrameType | None) -> None:
    _asked.append(number)
    if not _deaf:
        raise Stopped(number)
