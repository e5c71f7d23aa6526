"""Queries to the history: which jobs, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import EndingKind, Record

#: Longest text to search for, in characters. SQLite takes patterns of at most 50000 bytes.
MAX_TEXT = 1000


class Sort(str, Enum):
    """Sort key of a list of jobs. The largest or newest value is first, names ascend, unknown values are last."""

    #: The id, which is the order of submission.
    ID = "id"
    #: The end of the job. Jobs that have not ended are last.
    ENDED = "ended"
    #: The duration of the current or last run.
    DURATION = "duration"
    #: The peak memory of the current or last run.
    PEAK = "peak"
    #: The submitting account, then the newest job first.
    USER = "user"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryQuery:
    """Filters, order and page of a list of jobs. A job must match all filters that are set.

    ``since`` (inclusive) and ``until`` (exclusive) bound the time of submission. ``device`` is a UUID, the start of one
    or ``HOST:INDEX``. ``model`` is a part of a device's name, case-insensitive. Both match if any run of the job was on
    such a device.

    These filters match the current or last run: ``endings``, ``exit_code`` (128 + n also matches signal n, 124 also the
    time limit, 130 also cancelled), ``host``, ``min_peak_bytes`` (the sum over all devices), ``min_duration_s`` and
    ``max_duration_s``. An unknown value matches no filter.

    ``name`` is the whole name or a shell pattern such as ``sweep*``. ``array_id`` selects the members of that array.
    ``user`` is the name of the submitting account, ``owner`` the whole account: its name and its uid. ``tags`` must all
    be tags of the job. ``text`` is a part of the command or of the note, case-insensitive for ASCII letters.

    To get the next page in any order, set ``after_id`` to the id of the last job seen. New jobs then cause neither
    duplicates nor gaps. ``before_id`` selects jobs with a lower id, whatever the order.
    """

    user: str | None = None
    owner: Account | None = None
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


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldedRow:
    """A job, or an array with the number of its matching members in each state.

    The next page continues after ``last_id``: the id of the job, or the last id of the array in the requested order.
    """

    record: Record
    last_id: int
    members: Mapping[JobState, int] = field(default_factory=dict)
