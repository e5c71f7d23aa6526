"""The metrics that this service counts: submits, claims, waits, preemptions, and endings of runs.

They come from the events that the recorder has written to the history. Each event is counted once. The counters begin
at 0 when the service starts, which Prometheus takes for a reset of a counter. While the history is away they stay as
they are, and afterwards they catch up.
"""

from __future__ import annotations

import threading

from prometheus_client import CollectorRegistry, Counter, Histogram

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.history.recorded_events import Position, RecordedEvent
from gpuqueue.model.event import Act
from gpuqueue.model.run import EndingKind, StartKind

#: Events of one read of the history, and most reads for one scrape.
EVENTS, READS = 2000, 5
#: Upper bounds of waits, in seconds: from a second to a week.
WAITS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400)
#: The outcomes of runs that exited by themselves; the others are the kinds of endings.
SUCCEEDED, FAILED = "succeeded", "failed"
_UNKNOWN = "unknown"


class RecordedCounters:
    """The counters of what was recorded since this service started."""

    def __init__(self, registry: CollectorRegistry, database: HistoryDatabase) -> None:
        self._database = database
        self._position: Position | None = None
        self._lock = threading.Lock()
        self._submitted = Counter("gpuqueue_jobs_submitted", "Jobs submitted. An array counts once.", registry=registry)
        self._claims = Counter(
            "gpuqueue_claims", "Claims of jobs, by how they came about.", ("start",), registry=registry
        )
        self._released = Counter("gpuqueue_claims_released", "Claims that did not become runs.", registry=registry)
        self._preempted = Counter("gpuqueue_preemptions", "Runs that were asked to make room.", registry=registry)
        self._ended = Counter("gpuqueue_runs_ended", "Runs that ended, by outcome.", ("outcome",), registry=registry)
        self._waits = Histogram(
            "gpuqueue_job_wait_seconds",
            "Time from the submit of a job to the start of its first run.",
            buckets=WAITS_S,
            registry=registry,
        )
        for start in (*map(str, StartKind), _UNKNOWN):
            self._claims.labels(start)
        for outcome in (SUCCEEDED, FAILED, *(str(kind) for kind in EndingKind if kind is not EndingKind.EXITED)):
            self._ended.labels(outcome)

    def advance(self) -> bool:
        """Count what was recorded since the last call, and return True.

        Raises:
            HistoryUnreachable: the history does not answer. The next call goes on from the same event.

        """
        with self._lock:
            if self._position is None:
                self._position = self._database.recorded_position()
            for _ in range(READS):
                events, self._position, is_more = self._database.recorded_events(self._position, EVENTS)
                for event in events:
                    self._count(event)
                if not is_more:
                    break
        return True

    def _count(self, event: RecordedEvent) -> None:
        if event.act is Act.SUBMIT:
            self._submitted.inc()
        elif event.act is Act.CLAIM:
            self._claims.labels(str(event.start_kind or _UNKNOWN)).inc()
        elif event.act is Act.RELEASE_CLAIM:
            self._released.inc()
        elif event.act is Act.PREEMPT:
            self._preempted.inc()
        elif event.act is Act.STARTED and event.wait_s is not None:
            self._waits.observe(event.wait_s)
        elif event.act in {Act.FINISH, Act.LOSE}:
            self._ended.labels(outcome_of(event)).inc()


def outcome_of(event: RecordedEvent) -> str:
    """Return the outcome of the run that *event* ended."""
    if event.ending is EndingKind.EXITED:
        return FAILED if event.exit_code else SUCCEEDED
    return str(event.ending or EndingKind.LOST)
