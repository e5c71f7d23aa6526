"""What one may ask of the history: which jobs, and in which order. Pure; the book answers it."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState
from gpuqueue.model.run import EndingKind

#: Longest text to look for in a command, in characters: SQLite takes no pattern of more than 50000 bytes.
MAX_TEXT = 1000


class Sort(str, Enum):
    """By what a list of jobs is ordered. Largest or newest first, names from A on; what is not known stands last."""

    #: The id, which is the order of submission.
    ID = "id"
    #: The job's end. A job that has none yet stands last.
    ENDED = "ended"
    #: How long the current or last run took.
    DURATION = "duration"
    #: The peak memory of the current or last run.
    PEAK = "peak"
    #: The submitting account; within it the newest first.
    USER = "user"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryQuery:
    """Which jobs to show: those that match everything that is given.

    ``since`` (included) and ``until`` (not included) bound the time of submission. ``device`` is a UUID, its start or
    ``HOST:INDEX`` as the lists show it, and ``model`` a part of a device's name in any case: a job matches if any of
    its runs was on such a device. All else is about what a list shows, the current or last run: ``endings``,
    ``exit_code`` (128 + n is also signal n, 124 also out of time, 130 also cancelled), ``host``, ``min_peak_bytes``
    (over all its devices), ``min_duration_s`` and ``max_duration_s``. ``name`` is the whole name, or a pattern as a
    shell has them: ``sweep*``. What is not known matches none of them. ``array_id`` is whose members they are, ``tags``
    are words that all are tags of the job. ``text`` is a part of the command or of the note, in any case of its ASCII
    letters.

    To page on in any order, set ``after_id`` to the last id seen: no job is seen twice or missed while others come
    in. ``before_id`` keeps to older jobs, whatever the order.
    """

    user: str | None = None
    name: str | None = None
    states: tuple[JobState, ...] = ()
    endings: tuple[EndingKind, ...] = ()
    exit_code: int | None = None
    array_id: int | None = None
    tags: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    device: str | None = None
    model: str | None = None
    host: str | None = None
    min_peak_bytes: int | None = None
    min_duration_s: float | None = None
    max_duration_s: float | None = None
    text: str | None = None
    sort: Sort = Sort.ID
    reverse: bool = False
    limit: int = 50
    before_id: int | None = None
    after_id: int | None = None
