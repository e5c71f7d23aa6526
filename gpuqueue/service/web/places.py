"""The places of waiting jobs in the queue. Each is computed by the store and remembered for some seconds."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

from gpuqueue.clock import from_epoch_ms
from gpuqueue.model.page import JobPlace
from gpuqueue.queue.explanation import NEVER_THERE, Explanation
from gpuqueue.words.why.sentences import place_in_brief

#: How long a place is remembered, in seconds, and most places.
PLACE_S, MOST = 5.0, 5000


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
            if len(self._known) > MOST:
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
        room_at=_moment(start.room_ms) if start is not None else None,
        reserved=reserved,
        never=never,
    )


def _moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else from_epoch_ms(at_ms)
