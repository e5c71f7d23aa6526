"""What passes between a worker and the queue: claims, leases, beats and what is known of a device. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.array import Member
from gpuqueue.model.device import Device
from gpuqueue.model.job import JobSpec, WaitReason
from gpuqueue.model.run import RunDevice
from gpuqueue.queue.drains import Drain

#: A device whose worker was silent for so many beats is served by nobody.
SILENT_BEATS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A job that was given to a device: the token proves it in every later write. ``payload`` is the spec verbatim."""

    job_id: int
    token: str
    attempt: int
    spec: JobSpec
    lease_bytes: int
    devices: tuple[str, ...]
    claimed_ms: int
    payload: str = field(repr=False)
    member: Member | None = None

    @property
    def label(self) -> str:
        """Return what people call the job."""
        return str(self.member or self.job_id)


@dataclass(frozen=True, slots=True)
class Later:
    """Nothing was claimed, but a job was left to a better device: look again *after_s*, whatever became of that."""

    after_s: float


class BrokenClaim(Unreadable):
    """A job was claimed, and nobody can run it: its request cannot be read. Whoever claimed it must end it."""

    def __init__(self, job_id: int, token: str, why: str) -> None:
        super().__init__(f"job {job_id} was claimed, but {why}")
        self.job_id = job_id
        self.token = token
        self.why = why


@dataclass(frozen=True, kw_only=True, slots=True)
class Stranger:
    """A process on a device that the queue did not start. What cannot be seen of it is None."""

    pid: int
    held_bytes: int | None
    user: str | None
    command: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What a worker tells of its device with each beat: the device, and how much of it can be promised.

    ``foreign_bytes`` is what everybody but our runs holds (None: the device gives no reading), ``observed`` what each
    of our runs held in the same look, by job id (bytes of two moments would hide growth from each other);
    ``trouble`` is why the device promises nothing now: then it has no slots.
    """

    device: Device
    host: str
    headroom_bytes: int
    foreign_bytes: int | None
    slots: int
    pool: str = ""
    observed: Mapping[int, int] = field(default_factory=dict)
    strangers: tuple[Stranger, ...] = ()
    trouble: str | None = None

    @property
    def counted_bytes(self) -> int:
        """Return what is to be taken off the device: unknown memory is not free memory."""
        return self.device.total_bytes if self.foreign_bytes is None else self.foreign_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Alive:
    """What a worker tells of one of its runs with each beat; bytes observed on each device."""

    job_id: int
    token: str
    observed: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stray:
    """A run that its worker offers to a store which may have lost it: all that the store would know of it.

    ``payload`` is the job's spec as it was claimed, None where it was lost as well.
    """

    job_id: int
    token: str
    host: str
    worker: str
    devices: tuple[RunDevice, ...]
    claimed_ms: int | None
    log_path: str
    payload: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """A lease on a device, as the store has it. ``leads`` is true where the device's worker owns the run."""

    job_id: int
    token: str
    lease_bytes: int
    observed_bytes: int
    leads: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MakePlace:
    """A run must make place for the job *by*, in *left_s*; below 0 it should be gone by now."""

    by: int
    left_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdicts:
    """The answer to a beat: what to do with each run named, the leases that the worker did not name, the drains."""

    #: Of the store that answered; a new one means that it knows nothing but what the book knew.
    epoch: str
    go_on: frozenset[str]
    cancelled: frozenset[str]
    stale: frozenset[str]
    others: tuple[Lease, ...]
    drains: tuple[Drain, ...] = ()
    #: Of those that go on, by token: what must make place for another job.
    places: Mapping[str, MakePlace] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """Devices kept for a job that has waited too long. ``start_ms``: when they have room at the latest, if known.

    ``until_ms``: where it is not, until when they are kept if no run in the job's way ends before.
    """

    job_id: int
    devices: tuple[str, ...]
    start_ms: int | None
    until_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What the end of a run says of its devices; by default nothing.

    ``well``: they served it well, which ends every row of deaths there. ``against``: the devices on which its quick
    death looks like theirs and not its own, with ``why`` in a few words. Three different jobs in a row drain a device.
    """

    well: bool = False
    against: tuple[str, ...] = ()
    why: str = ""


NO_EVIDENCE = Evidence()


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """What a run has of a device: the bytes that it was promised, and those that it was last seen to hold."""

    job_id: int
    lease_bytes: int
    observed_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """For which job a device is kept, and since when; None where the store does not tell."""

    job_id: int
    since: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """Why a job whose run has ended waits for another one, and for how long at least, in seconds."""

    reason: WaitReason
    later_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceStatus:
    """A device as the queue knows it: capacity, what is promised, who serves it and when it was last heard."""

    device: Device
    host: str
    worker: str
    worker_pid: int
    headroom_bytes: int
    foreign_bytes: int | None
    promised_bytes: int
    jobs: tuple[int, ...]
    slots: int
    pool: str
    seen_s_ago: float
    drains: tuple[Drain, ...] = ()
    trouble: str | None = None
    strangers: tuple[Stranger, ...] = ()
    holdings: tuple[Holding, ...] = ()
    #: Whether its one run has it for itself.
    exclusive: bool = False
    #: The job that has it reserved.
    kept: Kept | None = None

    @property
    def drained(self) -> str | None:
        """Return in words why it is drained (``the fan``, ``by ann``), None if nobody drained it."""
        return "; ".join(each.why or str(each) for each in self.drains) or None

    @property
    def free_bytes(self) -> int:
        """Return what a new job could be promised now."""
        if self.trouble is not None or self.foreign_bytes is None or self.exclusive:
            return 0
        return max(0, self.device.total_bytes - self.headroom_bytes - self.foreign_bytes - self.promised_bytes)
