"""Waits of the steps of a run that end when the worker stops."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from typing import TypeVar

from gpuqueue.errors import Unreachable
from workers.threads import SteadyEvent

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Pause between two attempts to report to a store that does not answer, in seconds.
RETRY_S = 1.0


class Detached(Exception):
    """The worker is stopping. The next worker of the device continues from the run directory."""


def pause(stopping: SteadyEvent, pause_s: float = RETRY_S) -> None:
    """Wait for *pause_s* seconds.

    Raises:
        Detached: The worker is stopping.

    """
    if stopping.wait(pause_s):
        raise Detached


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
        pause(stopping)


def wait_for(handle: int, stopping: SteadyEvent) -> None:
    """Wait until the process behind the pidfd *handle* ends, and close it.

    Raises:
        Detached: The worker stops before the process ends.

    """
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(stopping, select.POLLIN)
    try:
        poll.poll()
    finally:
        os.close(handle)
    if stopping.is_set():
        raise Detached
