"""Sends what is new in the logs that somebody reads now."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing

from gpuqueue.errors import BadRequest
from gpuqueue.settings.settings import Settings
from workers.relay.link import Link, Refusal, ServiceAway
from workers.relay.logs import PART_BYTES, LogProgress
from workers.run.deliveries import Delivery
from workers.threads import SteadyEvent

log = logging.getLogger(__name__)

#: How often new output is sent, and for how long after a request, in seconds. Readers ask again before that.
PACE_S, FOLLOW_S = 0.25, 30.0
#: How long the loop sleeps while nobody reads a log, in seconds. A request wakes it.
IDLE_S = 2.0


class Followed:
    """The runs whose logs are sent while they are written. Threads may share it."""

    def __init__(self, settings: Settings, progress: LogProgress) -> None:
        self._settings = settings
        self._progress = progress
        self._lock = threading.Lock()
        #: The runs, by name, and until when each is followed, on the monotonic clock.
        self._runs: dict[str, tuple[Delivery, float]] = {}
        self._woken = SteadyEvent()

    def follow(self, run: Delivery) -> None:
        """Send what is new in the logs of *run* for a while."""
        with self._lock:
            self._runs[run.name] = run, time.monotonic() + FOLLOW_S
        self._woken.set()

    def loop(self, stopping: threading.Event) -> None:
        """Send what is new until *stopping* is set. Trouble ends it for a run: its readers will ask again."""
        with closing(Link(self._settings)) as link:
            while not stopping.is_set():
                runs = self._current()
                for run in runs:
                    self._send(run, link)
                if runs:
                    stopping.wait(PACE_S)
                else:
                    link.close()
                    self._woken.wait(IDLE_S)
                    self._woken.clear()

    def _current(self) -> list[Delivery]:
        now_s = time.monotonic()
        with self._lock:
            self._runs = {name: each for name, each in self._runs.items() if each[1] > now_s}
            return [run for run, _ in self._runs.values()]

    def _send(self, run: Delivery, link: Link) -> None:
        try:
            self._progress.of(run).send(link, PART_BYTES)
        except (ServiceAway, Refusal, BadRequest, OSError) as error:
            log.warning("the log of run %s is not sent as it is written: %s", run.name, error)
            with self._lock:
                self._runs.pop(run.name, None)
