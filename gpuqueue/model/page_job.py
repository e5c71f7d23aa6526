"""What the web page shows of one job: what it does now, its story with what it depends on, an array's members. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.dependencies import Condition
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.page_rows import JobPlace, QueueRow
from gpuqueue.model.run import EndingKind, Note, Record


class MemberSort(str, Enum):
    """What the members of an array are sorted by. ``value``: one value of their sweep. Unknown values are last."""

    INDEX = "index"
    STATE = "state"
    DURATION = "duration"
    PEAK = "peak"
    VALUE = "value"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceUse:
    """The use of one device by a run, in the last sample. ``silent``: the sample is old, its worker does not report.

    Utilisation (0 to 1), temperature and power are those of the whole device.
    """

    uuid: str
    host: str
    index: int
    name: str
    kind: DeviceKind
    total_bytes: int
    allocated_bytes: int
    used_bytes: int
    silent: bool = False
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveJob:
    """What a job does now.

    ``row`` is None for a job that has ended, and for a member of an array that no device has taken yet. ``place`` is
    set for a job that waits for a device. ``devices`` are those of its run.
    """

    at: datetime
    row: QueueRow | None = None
    place: JobPlace | None = None
    devices: tuple[DeviceUse, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSummary:
    """A job in a few words, as the history has it."""

    id: int
    name: str
    account: Account
    state: JobState


@dataclass(frozen=True, kw_only=True, slots=True)
class Related:
    """A job that another one waits for, with the condition, or that waits for another one (condition None).

    Name and state are None if the caller may not see the job, or nothing knows it any more.
    """

    id: int
    condition: Condition | None = None
    name: str | None = None
    state: JobState | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rights:
    """What the caller may do with a job: change it, run it again, read its output, see its command."""

    change: bool = False
    retry: bool = False
    logs: bool = False
    arguments: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """A job with its runs, and what the page says about it.

    ``verdict`` compares the memory that it asked for with what it used; None while no run has ended. ``after`` are the
    jobs that it waits for or has waited for, ``before`` those that wait for it, ``retries`` the newest ones that run it
    again. ``values`` are those of its sweep, if it is a member of one. ``idle`` is the last message to the owner about
    a run that is marked as idle, such as what happens next. ``away`` is why the store or the history does not answer:
    then a part is missing.
    """

    at: datetime
    record: Record
    rights: Rights
    verdict: str | None = None
    after: tuple[Related, ...] = ()
    before: tuple[Related, ...] = ()
    retries: tuple[Related, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    idle: Note | None = None
    away: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedMember:
    """A member of an array as the history has it. The figures are those of its current or last run."""

    index: int
    state: JobState
    host: str | None = None
    started_at: datetime | None = None
    duration_s: float | None = None
    peak_bytes: int | None = None
    exit_code: int | None = None
    ending: EndingKind | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberRow:
    """One member of an array. ``state`` is None for a moment after its end. ``values`` are those of its sweep.

    ``used_bytes`` is what its run used in the last sample.
    """

    index: int
    state: JobState | None
    values: tuple[str, ...] = ()
    host: str | None = None
    started_at: datetime | None = None
    duration_s: float | None = None
    peak_bytes: int | None = None
    used_bytes: int | None = None
    exit_code: int | None = None
    ending: EndingKind | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberTable:
    """A part of the members of an array, from ``offset`` on. ``axes`` are the names of the values of its sweep.

    ``sortable``: it is small enough to be sorted by anything but the index.
    """

    at: datetime
    total: int
    offset: int
    rows: tuple[MemberRow, ...]
    axes: tuple[str, ...] = ()
    sortable: bool = True
