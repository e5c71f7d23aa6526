"""Copies the events of the outbox into the history, in order, and lets the store drop the recorded events."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from gpuqueue.errors import Unreachable
from gpuqueue.history.connect import reason
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.writer import NOT_OF_THE_ROW
from gpuqueue.model.event import Cursor, Event
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.recovery import catch_up, open_queue
from gpuqueue.settings.settings import Settings

log = logging.getLogger(__name__)

#: Most events written in one transaction.
BATCH = 500
#: How long to wait for the next event before checking whether to stop, in seconds.
WAIT_S = 1.0
#: Pause after the store or the history did not answer, in seconds.
PAUSE_S = 1.0
#: Pause after a partial batch that was available without waiting, in seconds. Events that arrive meanwhile share one
#: transaction. Without the pause, in a series of short jobs the recorder used as much CPU time as the jobs and delayed
#: them; with 0.01 s, the fixed cost per transaction still dominated. Events that the recorder had to wait for, such as
#: the steps of a single job, are written at once.
GATHER_S = 0.04


class Recorder:
    """Records events. Any number of recorders may run: the history holds the cursor, and moves it with each batch."""

    def __init__(self, settings: Settings, queue: JobQueue, database: HistoryDatabase) -> None:
        self._settings = settings
        self._queue = queue
        self._database = database
        self._settled: Cursor | None = None
        self._reported: set[str] = set()

    def loop(self, stopping: threading.Event) -> None:
        """Record until *stopping* is set, and then until the outbox is empty."""
        while not stopping.is_set():
            try:
                self.mend()
                waiting = self.record(0)
                if not waiting:
                    self.record(WAIT_S)
            except Unreachable as error:
                self._report(str(error))
                stopping.wait(PAUSE_S)
            else:
                self._report(None)
                if 0 < waiting < BATCH:
                    stopping.wait(GATHER_S)
        try:
            while self.record(0):
                pass
        except Unreachable as error:
            log.warning("the outbox waits for the next recorder: %s", error)

    def _report(self, trouble: str | None) -> None:
        """Log each kind of trouble once per outage, since it may recur with every attempt, and log the end once."""
        if trouble is None:
            if self._reported:
                log.warning("the history is recorded again")
            self._reported.clear()
        elif trouble not in self._reported:
            log.warning("nothing is recorded for now, the outbox waits: %s", trouble)
            self._reported.add(trouble)

    def mend(self) -> None:
        """Open the store unless it is open, and restore the data that the store or the history lost.

        Raises:
            Unreachable: The store or the history does not answer. The next call continues.

        """
        opened = open_queue(self._queue, self._database, lease_s=self._settings.lease_s, settings=self._settings)
        if opened is not None and opened.lost_data:
            log.warning(
                "the store lost its data: %d jobs are back from the history, claims begin again in %.0f s",
                opened.jobs,
                opened.pause_s,
            )
        back = catch_up(self._queue, self._database)
        if back is not None:
            log.warning(
                "the history database lost its history: %d jobs that the store still knows are recorded again, "
                "jobs that had ended before are lost",
                back,
            )

    def record(self, wait_s: float) -> int:
        """Record one batch, and return its number of events. Wait up to *wait_s* seconds for the first event.

        Raises:
            Unreachable: The store or the history does not answer. No event is lost.

        """
        epoch = self._queue.epoch()
        if epoch is None:
            return 0
        known = self._database.cursor()
        here = known if known is not None and known.epoch == epoch else Cursor(epoch=epoch)
        if here != self._settled and here == known:
            self._settle(here)  # an earlier recorder may have died between writing the batch and settling it
        events = self._queue.outbox.events(here.last_id, most=BATCH, wait_s=wait_s)
        if events and self._apply(events, known, epoch):
            self._settle(Cursor(epoch=epoch, last_id=events[-1].id))
        return len(events)  # if another recorder was faster, the next turn continues from that recorder's cursor

    def _settle(self, cursor: Cursor) -> None:
        self._queue.outbox.settle(cursor)
        self._settled = cursor

    def _apply(self, events: Sequence[Event], known: Cursor | None, epoch: str) -> bool:
        """Write a batch to the history. If that fails, write the events one by one, and set aside those that fail."""
        try:
            return self._database.apply(events, expected=known, epoch=epoch)
        except NOT_OF_THE_ROW:
            raise
        except Exception as error:  # noqa: BLE001 - a driver may raise anything for a bad row
            log.warning(
                "%d events cannot be written at once, they are tried one by one: %s", len(events), reason(error)
            )
        for event in events:
            try:
                written = self._database.apply([event], expected=known, epoch=epoch)
            except NOT_OF_THE_ROW:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                why = reason(error)
                log.warning("event %s of job %s cannot be written, it is set aside: %s", event.id, event.job_id, why)
                written = self._database.set_aside(event, why, expected=known, epoch=epoch)
            if not written:
                return False
            known = Cursor(epoch=epoch, last_id=event.id)
        return True
