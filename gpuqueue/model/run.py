"""What a run is: one attempt at a job on one or more devices, and how it ended. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime
from enum import Enum

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Activity, DeviceKind, DeviceWish, Peak, Timeline
from gpuqueue.model.job import Job, JobState, Shape
from gpuqueue.model.notification import Told


class EndingKind(str, Enum):
    """How a run ended."""

    #: The process ended by itself; the exit code says how well.
    EXITED = "exited"
    #: A signal killed the process that gpuqueue did not send to end it.
    SIGNALLED = "signalled"
    #: It took more memory than there was, or than it had asked for.
    OUT_OF_MEMORY = "out_of_memory"
    #: It reached its time limit.
    TIMED_OUT = "timed_out"
    #: Somebody cancelled the job.
    CANCELLED = "cancelled"
    #: A job of a higher level took its place.
    PREEMPTED = "preempted"
    #: It could not be started: no such program, no such directory.
    REFUSED = "refused"
    #: Worker and shim vanished, or nobody vouched for the run in time. The exit code is unknown.
    LOST = "lost"

    def __str__(self) -> str:
        return self.value


class StartKind(str, Enum):
    """How a run came to its start; the words are those of the Flux framework."""

    #: No job that might run there was before it.
    IMMEDIATE = "immediate"
    #: It fitted where jobs before it in the order did not.
    BACKFILL = "backfill"
    #: Its devices had been kept for it, because it had waited too long.
    RESERVED = "reserved"

    @classmethod
    def known(cls, word: str | None) -> StartKind | None:
        """Return what *word* means; None where nothing was told, or a newer version told it."""
        return None if word is None else next((kind for kind in cls if kind.value == word), None)

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a run ended. Build it with one of the constructors below: they make only what can happen."""

    kind: EndingKind
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""

    @classmethod
    def from_status(cls, status: int) -> Ending:
        """Return the ending of a process that ended by itself with *status*, negative for a signal."""
        if status < 0:
            return cls(kind=EndingKind.SIGNALLED, signal=-status)
        return cls(kind=EndingKind.EXITED, exit_code=status)

    @classmethod
    def stopped(cls, kind: EndingKind, status: int | None, detail: str = "") -> Ending:
        """Return the ending of a process that gpuqueue itself ended, for the reason *kind*."""
        code = status if status is not None and status >= 0 else None
        number = -status if status is not None and status < 0 else None
        return cls(kind=kind, exit_code=code, signal=number, detail=detail)

    @classmethod
    def refused(cls, detail: str) -> Ending:
        """Return the ending of a run whose process could not be started."""
        return cls(kind=EndingKind.REFUSED, detail=detail)

    @classmethod
    def lost(cls, detail: str) -> Ending:
        """Return the ending of a run of which nobody knows the exit code."""
        return cls(kind=EndingKind.LOST, detail=detail)

    def __str__(self) -> str:
        """Return the ending in words, such as ``exit 1``, ``killed by SIGSEGV`` or ``timed out``."""
        if self.kind is EndingKind.EXITED:
            return f"exit {self.exit_code}"
        if self.kind is EndingKind.SIGNALLED:
            return f"killed by {_signal_name(self.signal)}"
        words = self.kind.value.replace("_", " ")
        return f"{words}: {self.detail}" if self.detail else words

    @property
    def shell_code(self) -> int:
        """Return the exit code that a shell would give: 128 + n for a signal, 124 for the time limit, 130 cancelled."""
        stopped = {EndingKind.TIMED_OUT: 124, EndingKind.CANCELLED: 130}
        if self.kind in stopped:
            return stopped[self.kind]
        if self.kind is EndingKind.SIGNALLED and self.signal:
            return 128 + self.signal
        own = self.kind in {EndingKind.EXITED, EndingKind.OUT_OF_MEMORY}
        return self.exit_code if own and self.exit_code is not None else 1


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def state_after(ending: Ending) -> JobState:
    """Return where a job stands after a run that ended so, if it may not run again."""
    if ending.kind is EndingKind.EXITED and ending.exit_code == 0:
        return JobState.SUCCEEDED
    if ending.kind is EndingKind.CANCELLED:
        return JobState.CANCELLED
    if ending.kind is EndingKind.LOST:
        return JobState.LOST
    return JobState.FAILED


UNKNOWN_PEAK = Peak.unknown()
UNKNOWN_ACTIVITY = Activity()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDevice:
    """What one device was to one run: how much it had to promise, and how much was really taken.

    ``timeline`` is None where there is none, and in lists of runs, which leave it out.
    """

    uuid: str
    lease_bytes: int
    index: int | None = None
    name: str | None = None
    kind: DeviceKind | None = None
    total_bytes: int | None = None
    peak: Peak = UNKNOWN_PEAK
    activity: Activity = UNKNOWN_ACTIVITY
    timeline: Timeline | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """What the worker tells of a run that has ended."""

    ending: Ending
    duration_s: float | None
    devices: tuple[RunDevice, ...]
    peak_at_once_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One attempt at a job. ``token`` is what every write about this run must carry.

    ``duration_s`` is measured by the shim on its own monotonic clock; the times are on the store's clock.
    ``peak_at_once_bytes`` is the most that the run held on all its devices in the same moment, which can be less
    than the sum of their peaks. ``start_kind`` is None for runs of versions that did not tell it.
    """

    job_id: int
    attempt: int
    token: str
    host: str
    worker: str
    devices: tuple[RunDevice, ...]
    claimed_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    duration_s: float | None = None
    ending: Ending | None = None
    log_path: str | None = None
    peak_at_once_bytes: int | None = None
    start_kind: StartKind | None = None

    @property
    def peak_bytes(self) -> int | None:
        """Return the sum of the devices' peaks; unknown if any of them is."""
        peaks = [device.peak.bytes for device in self.devices]
        if not peaks or any(peak is None for peak in peaks):
            return None
        return sum(peak for peak in peaks if peak is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something that its owner should know of a run, such as that it holds too much, or of a job that waits.

    ``attempt`` is 0 where there was no run yet.
    """

    at: datetime
    attempt: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A job with all its runs: one entry of the history. Lists leave out the notes, and who was told of its end."""

    job: Job
    runs: tuple[Run, ...] = ()
    notes: tuple[Note, ...] = ()
    told: tuple[Told, ...] = ()

    @property
    def last_run(self) -> Run | None:
        """Return the newest run, or None for a job that never ran."""
        return self.runs[-1] if self.runs else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Survivor:
    """A job that one store lost and the other hands back: its record, and its spec verbatim."""

    record: Record
    payload: str = field(repr=False)
    #: Whether it is meant for a GPU although its request does not say so: one was known when it was submitted.
    meant_for_gpu: bool = False
    #: Of the jobs that it is to come after those that have ended, and whether they succeeded.
    ends: Mapping[int, bool] = field(default_factory=dict)
    #: Until when its machine has left the run to its shim, on the store's clock; None if a worker answers for it.
    parked_until: datetime | None = None

    @property
    def shape(self) -> Shape:
        """Return what matters for matching it."""
        shape = self.record.job.spec.shape
        return replace(shape, device=DeviceWish.GPU) if self.meant_for_gpu and shape.device is None else shape

    @property
    def is_array(self) -> bool:
        """Return whether it is an array, as the scripts see it: also one whose request cannot be read any more."""
        return self.record.job.member is None and '"array":{' in self.payload

    @property
    def run(self) -> Run | None:
        """Return the run that holds devices now, or None."""
        job, run = self.record.job, self.record.last_run
        on = job.state.is_active and run is not None and run.attempt == job.attempt and run.ended_at is None
        return run if on else None
