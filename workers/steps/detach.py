"""Waits of the steps of a run that end when the worker stops."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from typing import TypeVar

from gpuqueue.errors import Unreachable
from workers.threads.steady_clock import SteadyEvent

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Pause between two attempts to report to a store that does not answer, in seconds.
RETRY_S = 1.0


class Detached(Exception):
    """The worker is stopping. The next worker of the device continues from the run directory."""


def answered(ask: Callable[[], T], stopping: SteadyEvent) -> T:
    """Call *ask* until the store answers, so that a store outage does not lose an ending.

    Raises:
        Detached: The worker is stopping.

    """
    while True:
        try:
            return ask()
        except Unreachable as error:
            log.warning("the store does not answer, trying again: %s", error)
        if stopping.wait(RETRY_S):
            raise Detached


class Detaching:
    """The signal that the worker stops. All waits raise :class:`Detached` after :meth:`set`."""

    def __init__(self) -> None:
        self._event = SteadyEvent()
        self._read, self._write = os.pipe()

    def set(self) -> None:
        """End all waits."""
        self._event.set()
        os.write(self._write, b"x")

    def pause(self, pause_s: float = RETRY_S) -> None:
        """Wait for *pause_s* seconds.

        Raises:
            Detached: The worker is stopping.

        """
        if self._event.wait(pause_s):
            raise Detached

    def wait_for(self, handle: int) -> None:
        """Wait until the process behind the pidfd *handle* ends, and close it.

        Raises:
            Detached: The worker stops before the process ends.

        """
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(self._read, select.POLLIN)
        try:
            poll.poll()
        finally:
            os.close(handle)
        if self._event.is_set():
            raise Detached

    def answered(self, ask: Callable[[], T]) -> T:
        """Call :func:`answered` until the worker stops. The run directory keeps the data for the next worker."""
        return answered(ask, self._event)
