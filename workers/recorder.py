"""Carries the outbox into the book, in order, and lets the queue forget what the book has."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from gpuqueue.book.book import Book
from gpuqueue.errors import Unreachable
from gpuqueue.event import Cursor, Event
from gpuqueue.opening import open_queue
from gpuqueue.queue.jobqueue import JobQueue

log = logging.getLogger(__name__)

#: Most events written in one transaction.
BATCH = 500
#: How long to wait for the next event before looking whether to stop, in seconds.
WAIT_S = 1.0
#: Pause after a service did not answer, in seconds.
PAUSE_S = 1.0


class Recorder:
    """One of any number: how far the book has read is a row in the book itself, moved in the same transaction."""

    def __init__(self, queue: JobQueue, book: Book) -> None:
        self._queue = queue
        self._book = book
        self._settled: Cursor | None = None

    def loop(self, stopping: threading.Event) -> None:
        """Record until *stopping* is set, and then until the outbox is empty."""
        while not stopping.is_set():
            try:
                open_queue(self._queue, self._book)
                self.record(WAIT_S)
            except Unreachable as error:
                log.warning("nothing recorded for now, the outbox waits: %s", error)
                stopping.wait(PAUSE_S)
        try:
            while self.record(0):
                pass
        except Unreachable as error:
            log.warning("the outbox waits for the next recorder: %s", error)

    def record(self, wait_s: float) -> int:
        """Record one batch, waiting up to *wait_s* for it; return how many events there were.

        Raises:
            Unreachable: the store or the book does not answer; nothing is lost.

        """
        epoch = self._queue.epoch()
        if epoch is None:
            return 0
        known = self._book.cursor()
        here = known if known is not None and known.epoch == epoch else Cursor(epoch=epoch)
        if here != self._settled and here == known:
            self._settle(here)  # an earlier recorder may have died right before it could
        events = self._queue.events(here.last_id, most=BATCH, wait_s=wait_s)
        if events and self._apply(events, known, epoch):
            self._settle(Cursor(epoch=epoch, last_id=events[-1].id))
        return len(events)  # where another recorder was faster, the next turn goes on from where it came to

    def _settle(self, cursor: Cursor) -> None:
        self._queue.settle(cursor)
        self._settled = cursor

    def _apply(self, events: Sequence[Event], known: Cursor | None, epoch: str) -> bool:
        """Write a batch down. One event that the book cannot take must not stop all others for ever."""
        try:
            return self._book.apply(events, expected=known, epoch=epoch)
        except Unreachable:
            raise
        except Exception:
            log.exception("a batch of %d events could not be written, they are tried one by one", len(events))
        for event in events:
            try:
                written = self._book.apply([event], expected=known, epoch=epoch)
            except Unreachable:
                raise
            except Exception:
                log.exception("event %s of job %s cannot be written: only that it was is kept", event.id, event.job_id)
                written = self._book.apply([event], expected=known, epoch=epoch, bare=True)
            if not written:
                return False
            known = Cursor(epoch=epoch, last_id=event.id)
        return True
