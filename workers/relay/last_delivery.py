"""The last delivery of a host that leaves its site for good, such as a pilot: no later process sends what is left."""

from __future__ import annotations

import threading
import time

from gpuqueue.settings.settings import Settings
from workers.relay.deliveries import POLL_S
from workers.relay.relay import Relay
from workers.run import deliveries
from workers.run.directory import reported


def deliver(settings: Settings, stopping: threading.Event, within_s: float) -> int:
    """Send what is left of all runs that have ended, and return of how many runs something is left after *within_s*.

    There must be no worker: the runs are settled without waiting for the history. Their ends are in the outbox of the
    store, and this host will not be there to report them again.
    """
    for directory in reported(settings.runs_dir):
        directory.settle()
    until_s = time.monotonic() + within_s

    def watch() -> None:
        while deliveries.names(settings) and time.monotonic() < until_s and not stopping.wait(POLL_S):
            pass
        stopping.set()

    threading.Thread(target=watch, name="gpuqueue-last", daemon=True).start()
    Relay(settings).serve(stopping)
    return len(deliveries.names(settings))
