"""The outbox: events of all jobs that wait for the history, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from gpuqueue.lazy.imports import later
from gpuqueue.queue import keys
from gpuqueue.queue.store import MAX_WAIT_S, Store, answering, to_ms

if TYPE_CHECKING:
    from gpuqueue.model.event import Cursor, Event
    from gpuqueue.queue import replies
else:
    replies = later("gpuqueue.queue.replies")


class Outbox:
    """The outbox, which a recorder reads: events, and what the history has recorded."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @answering
    def events(self, after: str, *, most: int = 500, wait_s: float = 0.0) -> list[Event]:
        """Return at most *most* events after the id *after*; wait up to *wait_s* seconds for the first."""
        block = max(1, to_ms(min(wait_s, MAX_WAIT_S))) if wait_s > 0 else None
        reply = cast("list[Any]", self._store.waiting_client.xread({keys.OUTBOX: after}, count=most, block=block))
        entries = reply[0][1] if reply else []
        return [replies.event(entry_id, fields) for entry_id, fields in entries]

    @answering
    def backlog(self) -> tuple[int, float | None]:
        """Return how many events wait for the history, and the age of the first in seconds (None: there is none)."""
        pipe = self._store.client.pipeline(transaction=True)
        pipe.time()
        pipe.xlen(keys.OUTBOX)
        pipe.xrange(keys.OUTBOX, count=1)
        (now_s, _), length, first = pipe.execute()
        if not first:
            return 0, None
        return int(length), max(0.0, int(now_s) - int(first[0][0].partition("-")[0]) / 1000)

    @answering
    def recorded(self) -> str | None:
        """Return the id of the last event that a history has recorded, None if there is none."""
        return cast("str | None", self._store.client.hget(keys.META, "recorded"))

    @answering
    def settle(self, cursor: Cursor) -> int:
        """Delete what the history has recorded up to *cursor*; return the number of deleted jobs."""
        ms, n = cursor.last_id.split("-")
        return int(self._store.scripts.run("settle", ms, n))
