"""Sends the notifications about ended, marked and held jobs, in the recorder's process. See docs/internals/adr/0009.

The history is the queue of notifications, so none waits in memory, and the recorder is independent of the sender. One
of a few threads takes, sends and settles each notification. A notification is sent at least once, and twice only if its
sender died in between.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from datetime import datetime, timedelta, timezone
from functools import partial

from gpuqueue.errors import GpuQueueError, Unreachable
from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.notifications import Due
from gpuqueue.model.job import JobState
from gpuqueue.model.notification import Notification, Outcome, is_before_end, mark_and_attempt, target_number
from gpuqueue.model.run import Record
from gpuqueue.notify import sending
from gpuqueue.notify.message import Message, held_message_of, mark_message_of, message_of
from gpuqueue.notify.targets import networks_of, url_of
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.senders import ANNOUNCE_S
from gpuqueue.settings.settings import Settings
from workers.threads import SteadyEvent

log = logging.getLogger(__name__)

#: The number of notifications that are sent at the same time.
THREADS = 4
#: How often the history is polled for due notifications, in seconds.
POLL_S = 1.0
#: How long the whole delivery of one notification may take, in seconds. Some mail servers delay unknown senders.
LIMIT_S = sending.LIMIT_S
#: The pause after the first failed attempt, in seconds; the factor between successive pauses; and the number of
#: attempts after which a notification is given up.
PAUSE_S, PAUSE_FACTOR, MOST_TRIES = 10.0, 6, 5
#: How long deliveries in progress may take after the recorder stops, in seconds.
LEAVE_S = 5.0


class Sender:
    """Sends notifications. Any number of senders may run, since each takes a notification in the history first."""

    def __init__(self, settings: Settings, queue: JobQueue, database: HistoryDatabase) -> None:
        self._settings = settings
        self._queue = queue
        self._database = database
        #: Deliveries in progress, and their processes. Threads change it with single operations, which are atomic.
        self._on_the_way: dict[tuple[int, int], subprocess.Popen[bytes] | None] = {}
        self._free = SteadyEvent()
        self._stopped = SteadyEvent()
        #: Targets that did not answer in time, and the time until which they are not tried. A dead target must not
        #: occupy every thread.
        self._resting: dict[str, float] = {}
        self._schemes: tuple[str, ...] = ()
        self._announced_s = -ANNOUNCE_S
        self._reported: str | None = None

    def loop(self, stopping: threading.Event) -> None:
        """Start the delivery of due notifications until *stopping* is set."""
        while not stopping.is_set():
            try:
                self.announce()
                self.turn()
            except Unreachable as error:
                self._report(f"no notification is sent for now: {error}")
            except Exception:  # an error here must not affect the recorder in the same process
                log.exception("the due notifications could not be sent")
            else:
                self._report(None)
            self._free.wait(POLL_S)
            self._free.clear()

    def leave(self) -> None:
        """Wait up to ``LEAVE_S`` for the deliveries in progress, and leave the rest to the next sender."""
        deadline_s = time.monotonic() + LEAVE_S
        while self._on_the_way and (left_s := deadline_s - time.monotonic()) > 0:
            self._free.wait(left_s)
            self._free.clear()
        self._stopped.set()
        for process in list(self._on_the_way.values()):
            if process is not None:
                sending.end(process)

    def announce(self) -> None:
        """Announce to submitters, every ``ANNOUNCE_S`` seconds, the targets and URL schemes that this sender supports.

        Raises:
            StoreUnreachable: The store does not answer.

        """
        if time.monotonic() - self._announced_s < ANNOUNCE_S:
            return
        if not self._schemes:  # Apprise may have been installed since the last announcement
            self._schemes = sending.schemes() if sending.is_there() else ()
        settings = self._settings
        self._queue.senders.announce(
            settings.host, targets=sorted(settings.notify), schemes=self._schemes, urls=settings.notify_urls
        )
        self._announced_s = time.monotonic()

    def turn(self) -> int:
        """Start a thread for each due notification, up to THREADS at a time, and return how many were started.

        Raises:
            HistoryUnreachable: The history does not answer.

        """
        free = THREADS - len(self._on_the_way)
        if free <= 0 or not sending.is_there():
            return 0
        due = self._database.due_notifications(now=_now(), most=2 * THREADS)
        ready = [each for each in due if (each.job_id, each.number) not in self._on_the_way and not self._rests(each)]
        for each in ready[:free]:
            self._on_the_way[each.job_id, each.number] = None
            name = f"gpuqueue-send-{each.job_id}"
            threading.Thread(target=self._deliver, args=(each,), name=name, daemon=True).start()
        return len(ready[:free])

    def _deliver(self, due: Due) -> None:
        try:
            self._deal_with(due)
        except Unreachable as error:
            log.warning("the outcome of a notification about job %s cannot be recorded: %s", due.job_id, error)
        except Exception:
            log.exception("a notification about job %s failed", due.job_id)
        finally:
            del self._on_the_way[due.job_id, due.number]
            self._free.set()

    def _deal_with(self, due: Due) -> None:
        """Take one notification, send it, and record the outcome."""
        # No other sender tries a taken notification. If this sender dies, another one tries it after the time below.
        if not self._database.take_notification(due, until=_now() + timedelta(seconds=2 * LIMIT_S)):
            return
        record = self._database.get(due.job_id)
        notification = _notification(record, due)
        if record is None or notification is None:
            trouble = "its job's request cannot be read"
            self._database.settle_notification(due, Outcome.GIVEN_UP, at=_now(), trouble=trouble)
        elif not _is_wanted(record, notification, due):
            self._database.settle_notification(due, Outcome.NOT_NEEDED, at=_now())
        else:
            self._settle(due, notification, self._sent(record, notification, due))

    def _sent(self, record: Record, notification: Notification, due: Due) -> str | None:
        """Send one notification, and return the reason of a failure, or None if it was sent."""
        try:
            url = url_of(notification, self._settings)
        except GpuQueueError as error:
            return str(error)
        message = _message(record, due, host=self._settings.host)
        began_s = time.monotonic()
        note = partial(self._on_the_way.__setitem__, (due.job_id, due.number))
        networks = networks_of(notification, self._settings)
        trouble = sending.send(url, message, networks=networks, limit_s=LIMIT_S, started=note)
        if trouble is not None and time.monotonic() - began_s >= LIMIT_S:
            self._resting[notification.to] = time.monotonic() + PAUSE_S
        return trouble

    def _settle(self, due: Due, notification: Notification, trouble: str | None) -> None:
        if trouble is None:
            self._database.settle_notification(due, Outcome.SENT, at=_now())
            what = "before its end" if is_before_end(due.number) else "of its end"
            log.info("job %s: %s was notified %s", due.job_id, notification.shown, what)
        elif self._stopped.is_set():
            self._database.put_off_notification(due, until=_now(), trouble="its sender stopped")
        elif due.tries + 1 < MOST_TRIES:
            until = _now() + timedelta(seconds=PAUSE_S * PAUSE_FACTOR**due.tries)
            log.warning("job %s: notifying %s failed, retrying later: %s", due.job_id, notification.shown, trouble)
            self._database.put_off_notification(due, until=until, trouble=trouble)
        else:
            log.warning("job %s: notifying %s failed, giving up: %s", due.job_id, notification.shown, trouble)
            self._database.settle_notification(due, Outcome.GIVEN_UP, at=_now(), trouble=trouble)

    def _rests(self, due: Due) -> bool:
        """Return whether the target of *due* is resting after a timeout. If so, put the notification off."""
        now_s = time.monotonic()
        self._resting = {to: until_s for to, until_s in list(self._resting.items()) if until_s > now_s}
        notification = _notification(self._database.get(due.job_id), due) if self._resting else None
        if notification is None or notification.to not in self._resting:
            return False
        until = _now() + timedelta(seconds=self._resting[notification.to] - now_s)
        self._database.put_off_notification(due, until=until, trouble="its target did not answer in time a moment ago")
        return True

    def _report(self, trouble: str | None) -> None:
        """Log each trouble once while it lasts."""
        if trouble is not None and trouble != self._reported:
            log.warning("%s", trouble)
        self._reported = trouble


def _notification(record: Record | None, due: Due) -> Notification | None:
    notifications = record.job.spec.notifications if record is not None else ()
    place = target_number(due.number)
    return notifications[place] if place < len(notifications) else None


def _is_wanted(record: Record, notification: Notification, due: Due) -> bool:
    """Return whether to send a notification. A marked run or a held array is no news once that is over."""
    job = record.job
    if is_before_end(due.number):
        if job.spec.array is not None:
            return not job.state.is_end and job.tally is not None and bool(job.tally.held)
        return not job.state.is_end and mark_and_attempt(due.number)[1] == job.attempt
    return notification.follows(succeeded=record.job.state is JobState.SUCCEEDED)


def _message(record: Record, due: Due, *, host: str) -> Message:
    if not is_before_end(due.number):
        return message_of(record, host=host)
    if record.job.spec.array is not None:
        return held_message_of(record)
    return mark_message_of(record, mark_and_attempt(due.number)[0])


def _now() -> datetime:
    return datetime.now(timezone.utc)
