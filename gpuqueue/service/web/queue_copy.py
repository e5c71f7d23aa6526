"""A copy of the queue that all viewers of the page share, so that one more viewer costs the store nothing.

A thread keeps it up to date while somebody looks. It reads new jobs, and those of which the outbox reports a step, at
once, the running ones every two seconds, and all others in turn: why a job waits may change without a step of its own.
The recorder deletes events that the history has, so one may be missed, and a job is out of date for one turn then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from datetime import datetime, timezone
from itertools import count

from gpuqueue.client.connection import Connection
from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.page import JobPlace, QueueRow
from gpuqueue.queue.explanation import NEVER_THERE, Explanation
from gpuqueue.queue.lease import SILENT_HEARTBEATS, DeviceStatus
from gpuqueue.service.web.rows import rows_of, with_array_states
from gpuqueue.settings.settings import Settings
from gpuqueue.words.why.sentences import place_in_brief

log = logging.getLogger(__name__)

#: After how long without a viewer the threads end, in seconds.
UNUSED_S = 600.0
#: How long a viewer waits for the first jobs, in seconds.
FIRST_S = 2.0
#: Pause after an error of the store, and between two questions to the history, in seconds.
AGAIN_S, HISTORY_S = 1.0, 5.0
#: Most jobs that are read. The oldest count.
MOST = 20_000
#: Most jobs in one step, and of them those whose turn it is.
PAGE, TURN = 1000, 200
#: In seconds: the pause between two steps, between two readings of running jobs, and between two lists of all ids.
PAUSE_S, RUNNING_S, IDS_S = 0.5, 2.0, 3.0
#: The id of the outbox that means: events from now on.
_NEW = "$"
#: How long a place is remembered, in seconds, and most places.
PLACE_S, MAX_PLACES = 5.0, 5000


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


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueState:
    """The queue at one moment. ``rows_version`` is another one if any row is.

    ``left_out``: there are more than MOST jobs. ``silent_after_s`` is the age of a heartbeat above which a worker is
    silent.
    """

    at: datetime
    rows: dict[int, QueueRow]
    devices: tuple[DeviceStatus, ...]
    complete: bool
    left_out: bool
    silent_after_s: float
    rows_version: int = 0
    #: What each user has used, as the claims of the store compare it.
    usage: Mapping[str, float] = field(default_factory=dict)


NOTHING = QueueState(
    at=datetime.fromtimestamp(0, timezone.utc),
    rows={},
    devices=(),
    complete=False,
    left_out=False,
    silent_after_s=0.0,
)


class QueueReader:
    """Reads with a connection of its own. *versions* are the numbers of the states. Use it in one thread."""

    def __init__(self, settings: Settings, versions: Iterator[int]) -> None:
        self._connection = Connection(settings)
        self._silent_after_s = SILENT_HEARTBEATS * settings.heartbeat_s
        self._versions = versions
        self._rows: dict[int, QueueRow] = {}
        self._unread: set[int] = set()
        self._turn: list[int] = []
        self._last_event = _NEW
        self._ids_at_s = self._running_at_s = 0.0
        self._left_out = False
        self._usage: Mapping[str, float] = {}
        self._state = NOTHING
        #: Whether a row differs from those of the last state.
        self._is_other = True

    def step(self) -> QueueState:
        """Read what has changed and what is due, and return the state.

        Raises:
            StoreUnreachable: the store does not answer.

        """
        queue = self._connection.queue
        if time.monotonic() - self._ids_at_s >= IDS_S:
            self._read_ids()
        chosen = self._due()
        found = queue.jobs.some(chosen)
        self._replace(chosen, rows_of(found))
        self._unread.difference_update(chosen)
        self._state = QueueState(
            at=found.at,
            rows=self._ordered() if self._is_other else self._state.rows,
            devices=tuple(queue.devices.all()),
            complete=not self._unread,
            left_out=self._left_out,
            silent_after_s=self._silent_after_s,
            rows_version=next(self._versions) if self._is_other else self._state.rows_version,
            usage=self._usage,
        )
        self._is_other = False
        return self._state

    def pause(self) -> None:
        """Wait until the next step is due, and note the jobs that have changed meanwhile.

        Raises:
            StoreUnreachable: the store does not answer.

        """
        if self._unread:
            return
        until_s = time.monotonic() + PAUSE_S
        while (left_s := until_s - time.monotonic()) > 0:
            events = self._connection.queue.outbox.events(self._last_event, wait_s=left_s)
            for each in events:
                self._unread.add(each.job_id)
                with suppress(KeyError, ValueError):  # a claim of a member changes its array
                    self._unread.add(int(each.fields["of"]))
            if events:
                self._last_event = events[-1].id
                time.sleep(max(0.0, min(0.05, left_s)))  # a submit of many jobs makes many events

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _read_ids(self) -> None:
        ids = set(self._connection.queue.jobs.ids(limit=MOST + 1))
        self._left_out = len(ids) > MOST
        if self._left_out:
            ids.discard(max(ids))
        for each in self._rows.keys() - ids:
            del self._rows[each]
            self._is_other = True
        self._unread.update(ids - self._rows.keys())
        usage = self._connection.queue.rules.usage()
        self._is_other |= [*usage] != [*self._usage]  # another order of the users, and so of their jobs
        self._usage = usage
        self._ids_at_s = time.monotonic()

    def _replace(self, chosen: list[int], rows: dict[int, QueueRow]) -> None:
        for each in chosen:
            row = rows.get(each)
            if row is None:
                self._is_other |= self._rows.pop(each, None) is not None
            elif self._rows.get(each) != row:
                self._rows[each] = row
                self._is_other = True

    def _ordered(self) -> dict[int, QueueRow]:
        return with_array_states({each: self._rows[each] for each in sorted(self._rows)})

    def _due(self) -> list[int]:
        """Return the jobs of one step: those that have changed or are new, those that run, and the next in turn."""
        running: list[int] = []
        if time.monotonic() - self._running_at_s >= RUNNING_S:
            running = [each.id for each in self._rows.values() if each.state.is_active]
            self._running_at_s = time.monotonic()
        if not self._turn:
            self._turn = sorted(self._rows)
        turn, self._turn = self._turn[:TURN], self._turn[TURN:]
        unread = sorted(self._unread, key=lambda each: (each not in self._rows, each))[:PAGE]
        return list(dict.fromkeys([*unread, *running[:PAGE], *turn]))


class Places:
    """Places by job id. Threads may share an instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[int, tuple[float, JobPlace | None]] = OrderedDict()

    def get(self, job_id: int, explain: Callable[[int], Explanation | None]) -> JobPlace | None:
        """Return the place of a job, None if it does not wait. *explain* asks the store."""
        now_s = time.monotonic()
        with self._lock:
            known = self._known.get(job_id)
        if known is not None and now_s - known[0] < PLACE_S:
            return known[1]
        explanation = explain(job_id)
        place = None if explanation is None else place_of(explanation)
        with self._lock:
            self._known[job_id] = (now_s, place)
            self._known.move_to_end(job_id)
            if len(self._known) > MAX_PLACES:
                self._known.popitem(last=False)
        return place


def place_of(found: Explanation) -> JobPlace:
    """Return the place that *found* describes."""
    start = found.start
    if start is not None and start.behind is not None:  # its times are those of the reserved job, which takes the room
        start = None
    never = bool(found.devices) and all(each.obstacle in NEVER_THERE for each in found.devices)
    reserved = any(each.reserved_for == found.job_id for each in found.devices)
    words = "a device is reserved for it" if reserved else place_in_brief(found)
    return JobPlace(
        ahead=found.before,
        words="no device here can ever run it" if never else words,
        start_at=_moment(start.at_ms) if start is not None else None,
        runs=found.runs_in_the_way if start is not None and not start.rivals else (),
        reserved=reserved,
        never=never,
    )


def _moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else from_epoch_ms(at_ms)
