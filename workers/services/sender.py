"""Sends the messages about ended jobs. The recorder's process runs it beside the recorder. docs/adr/0009.

The book is its queue, so nothing ever waits in memory, and recording does not know of it. Each message is taken, sent
and settled by one of a few lanes; it goes out at least once, and twice only if its sender died in between.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from gpuqueue.errors import GpuQueueError, Unreachable
from gpuqueue.history.database import Book
from gpuqueue.history.notifications import Due
from gpuqueue.model.job import JobState
from gpuqueue.model.notification import Notice, Outcome
from gpuqueue.model.run import Record
from gpuqueue.notify import sending
from gpuqueue.notify.message import message_of
from gpuqueue.notify.targets import url_of
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.senders import ANNOUNCE_S
from gpuqueue.settings.settings import Settings
from workers.threads.steady_clock import SteadyEvent

log = logging.getLogger(__name__)

#: Messages that are sent at the same time.
LANES = 4
#: How often the book is asked for what is due, in seconds.
LOOK_S = 1.0
#: How long one message may take, in seconds: a mail server that keeps strangers waiting, all of it.
LIMIT_S = sending.LIMIT_S
#: The pause after the first try that came to nothing, in seconds; each is so many times as long as the one before.
#: After the last try a message is given up.
PAUSE_S, PAUSE_FACTOR, MOST_TRIES = 10.0, 6, 5
#: How long messages that are on their way may take when the recorder leaves, in seconds.
LEAVE_S = 5.0


class Sender:
    """One of any number: each message is taken in the book before it is sent."""

    def __init__(self, settings: Settings, queue: JobQueue, book: Book) -> None:
        self._settings = settings
        self._queue = queue
        self._book = book
        self._on_the_way: dict[tuple[int, int], subprocess.Popen[bytes] | None] = {}
        self._lock = threading.Lock()
        self._free = SteadyEvent()
        self._left = SteadyEvent()
        #: URLs that did not answer in time, and until when they are left alone: a dead one must not take every lane.
        self._resting: dict[str, float] = {}
        self._schemes: tuple[str, ...] = ()
        self._announced_s = -ANNOUNCE_S
        self._told: str | None = None

    def loop(self, stopping: threading.Event) -> None:
        """Send until *stopping* is set. What is on its way then has LEAVE_S."""
        while not stopping.is_set():
            try:
                self.announce()
                self.turn()
            except Unreachable as error:
                self._tell(f"no message is sent for now: {error}")
            except Exception:  # the recorder beside us must not see more of it than a line
                log.exception("the messages that are due could not be looked at")
            else:
                self._tell(None)
            self._free.wait(LOOK_S)
            self._free.clear()

    def leave(self) -> None:
        """Give what is on its way some time, and leave the rest to the next sender."""
        deadline_s = time.monotonic() + LEAVE_S
        while self._on_the_way and (left_s := deadline_s - time.monotonic()) > 0:
            self._free.wait(left_s)
            self._free.clear()
        self._left.set()
        with self._lock:
            processes = list(self._on_the_way.values())
        for process in processes:
            if process is not None:
                sending.end(process)

    def announce(self) -> None:
        """Tell those who submit what can be sent from here, from time to time.

        Raises:
            StoreUnreachable: the store does not answer.

        """
        if time.monotonic() - self._announced_s < ANNOUNCE_S:
            return
        if not self._schemes:  # it may have been installed since
            self._schemes = sending.schemes() if sending.is_there() else ()
        settings = self._settings
        self._queue.announce_sender(
            settings.host, targets=sorted(settings.notify), schemes=self._schemes, urls=settings.notify_urls
        )
        self._announced_s = time.monotonic()

    def turn(self) -> int:
        """Give what is due to the lanes that are free; return how many messages that were.

        Raises:
            BookUnreachable: the book does not answer.

        """
        free = LANES - len(self._on_the_way)
        if free <= 0 or not sending.is_there():
            return 0
        due = self._book.due_notices(now=_now(), most=2 * LANES)
        ready = [each for each in due if (each.job_id, each.number) not in self._on_the_way and not self._rests(each)]
        for each in ready[:free]:
            with self._lock:
                self._on_the_way[each.job_id, each.number] = None
            name = f"gpuqueue-send-{each.job_id}"
            threading.Thread(target=self._lane, args=(each,), name=name, daemon=True).start()
        return len(ready[:free])

    def _lane(self, due: Due) -> None:
        key = due.job_id, due.number
        try:
            self._deal_with(due)
        except Unreachable as error:
            log.warning("what became of a message about job %s cannot be noted: %s", due.job_id, error)
        except Exception:
            log.exception("a message about job %s could not be dealt with", due.job_id)
        finally:
            with self._lock:
                del self._on_the_way[key]
            self._free.set()

    def _deal_with(self, due: Due) -> None:
        """Take one message, send it, and note what became of it."""
        # While it is taken nobody else sends it; should we die, somebody does after that.
        if not self._book.take_notice(due, until=_now() + timedelta(seconds=2 * LIMIT_S)):
            return
        record = self._book.get(due.job_id)
        notice = _notice(record, due)
        if record is None or notice is None:
            self._book.settle_notice(due, Outcome.GIVEN_UP, at=_now(), trouble="its job's request cannot be read")
        elif not notice.follows(succeeded=record.job.state is JobState.SUCCEEDED):
            self._book.settle_notice(due, Outcome.NOT_NEEDED, at=_now())
        else:
            self._settle(due, notice, self._sent(record, notice, due))

    def _sent(self, record: Record, notice: Notice, due: Due) -> str | None:
        """Send one message; return why that came to nothing, None if it was sent."""
        try:
            url = url_of(notice, self._settings)
        except GpuQueueError as error:
            return str(error)
        message = message_of(record, host=self._settings.host)
        began_s = time.monotonic()
        trouble = sending.send(url, message, limit_s=LIMIT_S, started=self._noting(due))
        if trouble is not None and time.monotonic() - began_s >= LIMIT_S:
            with self._lock:
                self._resting[notice.to] = time.monotonic() + PAUSE_S
        return trouble

    def _noting(self, due: Due) -> Callable[[subprocess.Popen[bytes]], None]:
        def note(process: subprocess.Popen[bytes]) -> None:
            with self._lock:
                self._on_the_way[due.job_id, due.number] = process

        return note

    def _settle(self, due: Due, notice: Notice, trouble: str | None) -> None:
        if trouble is None:
            self._book.settle_notice(due, Outcome.SENT, at=_now())
            log.info("job %s: %s was told of its end", due.job_id, notice.shown)
        elif self._left.is_set():
            self._book.put_off_notice(due, until=_now(), trouble="its sender left")
        elif due.tries + 1 < MOST_TRIES:
            until = _now() + timedelta(seconds=PAUSE_S * PAUSE_FACTOR**due.tries)
            log.warning("job %s: %s cannot be told, it is tried again: %s", due.job_id, notice.shown, trouble)
            self._book.put_off_notice(due, until=until, trouble=trouble)
        else:
            log.warning("job %s: %s cannot be told, it is given up: %s", due.job_id, notice.shown, trouble)
            self._book.settle_notice(due, Outcome.GIVEN_UP, at=_now(), trouble=trouble)

    def _rests(self, due: Due) -> bool:
        """Return whether the target of *due* did not answer in time a moment ago; then it is put off untried."""
        now_s = time.monotonic()
        with self._lock:
            self._resting = {to: until_s for to, until_s in self._resting.items() if until_s > now_s}
            resting = dict(self._resting)
        notice = _notice(self._book.get(due.job_id), due) if resting else None
        if notice is None or notice.to not in resting:
            return False
        until = _now() + timedelta(seconds=resting[notice.to] - now_s)
        self._book.put_off_notice(due, until=until, trouble="its target did not answer in time a moment ago")
        return True

    def _tell(self, trouble: str | None) -> None:
        """Say each trouble once, while it lasts."""
        if trouble is not None and trouble != self._told:
            log.warning("%s", trouble)
        self._told = trouble


def _notice(record: Record | None, due: Due) -> Notice | None:
    notices = record.job.spec.notices if record is not None else ()
    return notices[due.number] if due.number < len(notices) else None


def _now() -> datetime:
    return datetime.now(timezone.utc)
