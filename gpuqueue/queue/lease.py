"""Values that pass between a worker and the queue: claims, leases, heartbeats and device status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.array import Member
from gpuqueue.model.calendar import CalendarReservation
from gpuqueue.model.device import Device, Health, Xid
from gpuqueue.model.job import WaitReason
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import RunDevice
from gpuqueue.queue.drains import Drain

#: The health of a device whose driver reports none.
NOT_REPORTED = Health()
#: Number of missed heartbeats after which a device counts as not served.
SILENT_HEARTBEATS = 3
#: Number of different jobs in a row that a host could not start, from which on it is named.
MANY_REFUSALS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claimed job. ``token`` proves the claim in every later write; ``payload`` is the spec verbatim."""

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
        """Return the name of the job in messages: its id, or array and index of a member."""
        return str(self.member or self.job_id)


@dataclass(frozen=True, slots=True)
class Later:
    """Nothing was claimed, but a job was left to a better device: poll again after *after_s* seconds."""

    after_s: float


class BrokenClaim(Unreadable):
    """A job was claimed, but its request cannot be read. The caller must end the job."""

    def __init__(self, job_id: int, token: str, why: str) -> None:
        super().__init__(f"job {job_id} was claimed, but {why}")
        self.job_id = job_id
        self.token = token
        self.why = why


@dataclass(frozen=True, kw_only=True, slots=True)
class ExternalProcess:
    """An external process on a device. Unknown values are None.

    ``held_bytes`` is what it uses now. ``counted_bytes`` is that and a part of what it has freed lately. ``started_at``
    is the start of the process, on the clock of its host. ``job_id`` is the job that it belongs to, if that was given
    other devices.
    """

    pid: int
    held_bytes: int | None
    user: str | None
    command: str | None
    counted_bytes: int | None = None
    started_at: datetime | None = None
    job_id: int | None = None

    @property
    def freed_bytes(self) -> int:
        """Return the bytes that still count although the process has freed them."""
        return max(0, (self.counted_bytes or 0) - (self.held_bytes or 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What a worker reports about its device with each heartbeat: the device, and how much of it is available.

    ``external_bytes`` is the memory that external processes use (None: no reading). ``observed`` is the
    memory that each run used in the same sample, by job id; values from different samples could hide growth.
    ``trouble`` is why the device takes no jobs now; it then has no slots. ``machine`` is the id of the machine; empty:
    the store does not check whether the host name belongs to another one.
    """

    device: Device
    host: str
    headroom_bytes: int
    external_bytes: int | None
    slots: int
    pool: str = ""
    observed: Mapping[int, int] = field(default_factory=dict)
    external_processes: tuple[ExternalProcess, ...] = ()
    trouble: str | None = None
    machine: str = ""
    #: What else the driver reports about the device now.
    health: Health = NOT_REPORTED
    #: The setting that leaves out some GPUs of the host, such as ``gpu:0,2``; None: there is none.
    only: str | None = None

    @property
    def counted_bytes(self) -> int:
        """Return the memory to count as external: all of the device if it is unknown."""
        return self.device.total_bytes if self.external_bytes is None else self.external_bytes

    @property
    def driver_bytes(self) -> int | None:
        """Return the external memory that no process holds. It is the driver's own. None if it is unknown."""
        if self.external_bytes is None:
            return None
        of_processes = sum(each.counted_bytes or each.held_bytes or 0 for each in self.external_processes)
        return max(0, self.external_bytes - of_processes)

    @property
    def kind_word(self) -> str:
        """Return the device kind in the store.

        It is ``mig`` for a MIG instance, which no job on several devices can use, and ``cpu-auto`` for a CPU that is
        served because no GPU was found.
        """
        if self.device.no_gpu is not None:
            return "cpu-auto"
        return "mig" if self.device.mig_parent is not None else self.device.kind.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Alive:
    """What a worker reports about one of its runs with each heartbeat; ``observed`` is used bytes by device."""

    job_id: int
    token: str
    observed: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stray:
    """A run that its worker offers to a store which may have lost it, with everything the store needs.

    ``payload`` is the job's spec as it was claimed, None if it is lost as well.
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
    """A lease on a device, as the store has it. ``leads`` is true if the device's worker owns the run."""

    job_id: int
    token: str
    lease_bytes: int
    observed_bytes: int
    leads: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PreemptRequest:
    """A run is preempted by the job *by* and has *left_s* seconds to end; a negative value means overdue.

    *by* is 0 if it is for no job: its time on the device is over.
    """

    by: int
    left_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdicts:
    """The reply to a heartbeat: a verdict on each reported run, the other leases of the device, and its drains."""

    #: Epoch of the store. A new epoch means that the store lost its data and knows only what the history knew.
    epoch: str
    go_on: frozenset[str]
    cancelled: frozenset[str]
    stale: frozenset[str]
    others: tuple[Lease, ...]
    drains: tuple[Drain, ...] = ()
    calendar: tuple[CalendarReservation, ...] = ()
    #: Preemptions of the runs in ``go_on``, by token.
    preemptions: Mapping[str, PreemptRequest] = field(default_factory=dict)
    #: The time limits of the runs whose limit was extended, in seconds, by token.
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """Devices reserved for a job that has waited too long. ``start_ms``: when they have room at the latest, if known.

    ``until_ms``: when the reservation ends; None for one that waits for preempted runs.
    """

    job_id: int
    devices: tuple[str, ...]
    start_ms: int | None
    until_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservations:
    """All reservations of the site. ``again_ms``: when there may be more even if nothing has changed until then."""

    made: tuple[Reservation, ...]
    again_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """The memory of a run on a device: allocated bytes, and used bytes in the last sample."""

    job_id: int
    lease_bytes: int
    observed_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceReservation:
    """The job that a device is reserved for, and since when; ``since`` is None if it is unknown.

    ``need_bytes`` are reserved for the job once the runs of ``blockers`` have ended, at ``start`` at the latest.
    Either is None if unknown.
    """

    job_id: int
    since: datetime | None
    need_bytes: int | None = None
    start: datetime | None = None
    blockers: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusals:
    """How many jobs in a row a host could not start, and why it could not start the last one."""

    jobs: int
    why: str

    @property
    def are_many(self) -> bool:
        """Return whether the host is a more likely cause than its jobs."""
        return self.jobs >= MANY_REFUSALS


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """Why a job whose run has ended waits for another run, and its minimum wait in seconds."""

    reason: WaitReason
    later_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceStatus:
    """A device as the queue knows it: capacity, allocated memory, its worker, and the age of its last heartbeat."""

    device: Device
    host: str
    worker: str
    worker_pid: int
    headroom_bytes: int
    external_bytes: int | None
    allocated_bytes: int
    jobs: tuple[int, ...]
    slots: int
    pool: str
    seen_s_ago: float
    drains: tuple[Drain, ...] = ()
    #: Drains that do not hold yet, the earliest first.
    planned_drains: tuple[Drain, ...] = ()
    #: What people have reserved it for and is not over, the first one first.
    calendar: tuple[CalendarReservation, ...] = ()
    trouble: str | None = None
    external_processes: tuple[ExternalProcess, ...] = ()
    holdings: tuple[Holding, ...] = ()
    #: Whether its only run holds it exclusively.
    exclusive: bool = False
    #: The job that it is reserved for.
    reservation: DeviceReservation | None = None
    #: The jobs that its host could not start since the last run that succeeded there.
    refusals: Refusals | None = None
    #: Utilisation (0 to 1), temperature and power at the last heartbeat; None if the driver does not report them.
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    #: As in :class:`Offer`, at the last heartbeat; None: an older worker.
    driver_bytes: int | None = None
    #: Memory errors that could not be corrected, since the driver started; None if it does not report them.
    memory_errors: int | None = None
    #: Rows of its memory (pages, on older cards) that were retired; None if it does not report them.
    retired_rows: int | None = None
    #: What becomes of a further one: ``pending`` until the next reset, or ``failed``.
    retirement: str | None = None
    #: The last Xid errors that its driver reported since its worker started, oldest first.
    xids: tuple[Xid, ...] = ()
    #: Names of the Python environments of its host; None: an older worker.
    environments: tuple[str, ...] | None = None
    #: Whether its host can limit processors and host memory of jobs; None: an older worker.
    limits_jobs: bool | None = None
    #: As in :class:`Offer`, when its worker started.
    only: str | None = None
    #: Whether it is a CPU whose host has served GPUs and finds none now: jobs that ask for no device kind wait.
    lost_gpus: bool = False

    DERIVED = ("free_bytes", "ends_at")

    @property
    def end(self) -> Drain | None:
        """Return the planned drain that begins first, None if none is planned."""
        return self.planned_drains[0] if self.planned_drains else None

    @property
    def ends_at(self) -> datetime | None:
        """When it takes no job any more. Until then it takes only jobs that are over by then. None: no end is known."""
        return None if self.end is None else self.end.begins_at

    @property
    def drained(self) -> str | None:
        """Return as text why it is drained (``the fan``, ``by ann``), None if it is not drained."""
        return "; ".join(each.why or str(each) for each in self.drains) or None

    @property
    def free_bytes(self) -> int:
        """The memory that a new job could be allocated now."""
        if self.trouble is not None or self.external_bytes is None or self.exclusive:
            return 0
        return max(0, self.device.total_bytes - self.headroom_bytes - self.external_bytes - self.allocated_bytes)
