"""Waits for a store that another host or account starts and opens. After a reboot that can be later than here."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from gpuqueue.errors import StoreNotOpen, StoreNotReady, StoreUnreachable

if TYPE_CHECKING:
    from gpuqueue.queue.jobqueue import JobQueue

#: Interval between two polls, in seconds.
POLL_S = 0.05


def await_store(queue: JobQueue, *, within_s: float) -> None:
    """Wait until the store answers, and report a wait.

    Raises:
        StoreUnreachable: it does not answer within *within_s*.

    """
    until_s = time.monotonic() + within_s
    is_reported = False
    while True:
        try:
            queue.epoch()
        except StoreNotReady:
            return
        except StoreUnreachable as error:
            if time.monotonic() > until_s:
                raise
            if not is_reported:
                sys.stderr.write(f"gpuqueue: {error}. Waiting for it, at most {within_s:.0f} s\n")
                is_reported = True
            time.sleep(POLL_S)
        else:
            return


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
