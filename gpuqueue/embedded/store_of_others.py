"""Waits for a store that another host or account starts and opens. After a reboot that can be later than here."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from gpuqueue.embedded.store import IS_LOADING, SILENT_S
from gpuqueue.errors import StoreLoading, StoreNotOpen, StoreNotReady, StoreUnreachable, Unreachable

if TYPE_CHECKING:
    from gpuqueue.queue.jobqueue import JobQueue

#: How long a start waits for a store that is loading its data, in seconds.
LOADING_S = 600.0
#: Interval between two polls, in seconds.
POLL_S = 0.05


def await_store(queue: JobQueue, *, within_s: float) -> None:
    """Wait until the store answers and has loaded its data, and report a wait.

    Raises:
        StoreUnreachable: it does not answer within *within_s*.
        StoreLoading: it is still loading its data after ``LOADING_S``.

    """
    began_s = time.monotonic()
    reported = set[type[Unreachable]]()
    trouble: Unreachable
    while True:
        try:
            queue.epoch()
        except StoreLoading as error:
            trouble, text, limit_s, silent_s = error, IS_LOADING, LOADING_S, SILENT_S
        except StoreNotReady:
            return
        except StoreUnreachable as error:
            trouble, text, limit_s, silent_s = error, str(error), within_s, 0.0
        else:
            return
        waited_s = time.monotonic() - began_s
        if waited_s >= limit_s:
            raise trouble
        if waited_s >= silent_s and type(trouble) not in reported:
            sys.stderr.write(f"gpuqueue: {text}. Waiting for it, at most {limit_s:.0f} s\n")
            reported.add(type(trouble))
        time.sleep(POLL_S)


def await_open(queue: JobQueue, *, within_s: float) -> None:
    """Wait until a recorder has opened the store.

    Raises:
        StoreNotOpen: none has within *within_s*.

    """
    until_s = time.monotonic() + within_s
    while queue.epoch() is None:
        if time.monotonic() > until_s:
            raise StoreNotOpen(
                "the store is not open: a recorder opens it, on the host of the service. Does gpuqueue run there?"
            )
        time.sleep(POLL_S)
