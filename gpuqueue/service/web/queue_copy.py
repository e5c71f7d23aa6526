"""A copy of the queue that all viewers of the page share, so that one more viewer costs the store nothing.

A thread keeps it up to date while somebody looks. It reads new jobs, and those of which the outbox reports a step, at
once, the running ones every two seconds, and all others in turn: why a job waits may change without a step of its own.
The recorder deletes events that the history has, so one may be missed, and a job is out of date for one turn then.
"""

from __future__ import annotations

import logging
import threading
import time
from itertools import count

from gpuqueue.errors import GpuQueueError
from gpuqueue.service.web.queue_reader import NOTHING, QueueReader, QueueState
from gpuqueue.settings.settings import Settings

log = logging.getLogger(__name__)

#: After how long without a viewer the threads end, in seconds.
UNUSED_S = 600.0
#: How long a viewer waits for the first jobs, in seconds.
FIRST_S = 2.0
#: Pause after an error of the store, and between two questions to the history, in seconds.
AGAIN_S, HISTORY_S = 1.0, 5.0


class QueueCopy:
    """The copy of one site's queue. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._changed = threading.Condition()
        self._versions = count(1)
        self._state = NOTHING
        self._trouble: GpuQueueError | None = None
        self._used_s = 0.0
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()

    def state(self) -> QueueState:
        """Return the copy as it is now. Nobody changes it any more.

        Raises:
            Unreachable: the store does not answer.

        """
        until_s = time.monotonic() + FIRST_S
        with self._changed:
            self._used_s = time.monotonic()
            self._start()
            while self._state is NOTHING and self._trouble is None and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            if self._trouble is not None:
                raise self._trouble
            return self._state

    def close(self) -> None:
        """End the threads."""
        self._over.set()
        for each in self._threads:
            each.join()

    def _start(self) -> None:
        """Start the threads, unless they run. The caller has the lock."""
        if self._threads or self._over.is_set():
            return
        self._trouble = None
        self._threads = [
            threading.Thread(target=self._keep, name="queue-copy", daemon=True),
        ]
        for each in self._threads:
            each.start()

    def _is_needed(self) -> bool:
        return not self._over.is_set() and time.monotonic() - self._used_s <= UNUSED_S

    def _keep(self) -> None:
        while self._is_needed():
            try:
                self._read()
            except GpuQueueError as error:
                self._fail(error)
            except Exception as error:
                log.exception("the queue cannot be read for the page")
                self._fail(GpuQueueError(f"the queue cannot be read ({type(error).__name__}): see the service's log"))
            self._over.wait(AGAIN_S)
        with self._changed:
            self._state, self._threads = NOTHING, []

    def _read(self) -> None:
        reader = QueueReader(self._settings, self._versions)
        try:
            while self._is_needed():
                state = reader.step()
                with self._changed:
                    # A copy that is being made anew does not replace a whole one.
                    if state.complete or not self._state.complete:
                        self._state = state
                    self._trouble = None
                    self._changed.notify_all()
                reader.pause()
        finally:
            reader.close()

    def _fail(self, error: GpuQueueError) -> None:
        with self._changed:
            self._trouble = error
            self._changed.notify_all()
