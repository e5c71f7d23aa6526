"""When running jobs have probably ended: one moment for each run, for all who ask.

The prediction of a progress bar changes with each line of output. The queue, the devices, the page of a job and ``why``
must show the same time. So a moment stays as it is until the prediction differs from it by more than a little.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from gpuqueue.model.progress import Progress

#: The largest difference between a moment and a new prediction that keeps the moment: in seconds, and as a share of the
#: time left.
NEAR_S, NEAR_SHARE = 60.0, 0.1
#: Most jobs whose moment is kept. Those that were asked for longest ago are forgotten first.
MOST_JOBS = 5000


class Foreseen:
    """The moments by job. Threads may share an instance."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._ends: OrderedDict[int, datetime] = OrderedDict()

    def settled(self, progress: Mapping[int, Progress]) -> dict[int, Progress]:
        """Return *progress* with the moments at which the jobs have probably ended, and the time left until then."""
        with self._lock:
            settled = {job_id: self._settled(job_id, shown) for job_id, shown in progress.items()}
            while len(self._ends) > MOST_JOBS:
                self._ends.popitem(last=False)
        return settled

    def _settled(self, job_id: int, shown: Progress) -> Progress:
        if shown.left_s is None:
            return shown
        now = self._now()
        own = now + timedelta(seconds=shown.left_s)
        kept = self._ends.get(job_id, own)
        near_s = max(NEAR_S, NEAR_SHARE * shown.left_s)
        ends_at = kept if kept > now and abs((kept - own).total_seconds()) <= near_s else own
        self._ends[job_id] = ends_at
        self._ends.move_to_end(job_id)
        return replace(shown, left_s=(ends_at - now).total_seconds(), ends_at=ends_at)
