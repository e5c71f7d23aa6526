"""Reads the queue step by step, as little as is needed to have all of it up to date."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone

from gpuqueue.client.connection import Connection
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.page import QueueRow
from gpuqueue.queue.lease import SILENT_HEARTBEATS, DeviceStatus
from gpuqueue.service.web.rows import rows_of, with_array_states
from gpuqueue.settings.settings import Settings

#: Most jobs that are read. The oldest count.
MOST = 20_000
#: Most jobs in one step, and of them those whose turn it is.
PAGE, TURN = 1000, 200
#: In seconds: the pause between two steps, between two readings of running jobs, and between two lists of all ids.
PAUSE_S, RUNNING_S, IDS_S = 0.5, 2.0, 3.0
#: The id of the outbox that means: events from now on.
_NEW = "$"


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
