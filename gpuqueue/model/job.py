"""Jobs and their states. Pure. Read this file first.

A **job** has a **spec**, the frozen request of its submitter (see :mod:`gpuqueue.model.job_spec`). Each claim of the
job creates a new **run** (see :mod:`gpuqueue.model.run`). A job has a **state**, and a run has an **ending**. They
differ, because a job can be queued again after a run that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.array import Member, Tally
from gpuqueue.model.dependencies import Dependency
from gpuqueue.model.job_spec import JobSpec, Priority
from gpuqueue.text.units import format_bytes

if TYPE_CHECKING:
    from gpuqueue.model.run_mark import RunMark


class JobState(str, Enum):
    """The state of a job, with what leads to the next state."""

    #: The job waits for a device with enough memory. A worker's claim starts it.
    QUEUED = "queued"
    #: A user held the job, it was lost or requeued too often, or no host can start it. ``release`` queues it again.
    HELD = "held"
    #: A worker has claimed the job and is about to start it.
    STARTING = "starting"
    #: The job's processes are alive under a shim.
    RUNNING = "running"
    #: Cancellation was requested. The worker reports the end once the processes are gone.
    CANCELLING = "cancelling"
    #: Final: the job exited with 0.
    SUCCEEDED = "succeeded"
    #: Final: the job exited with another code, was killed, exceeded its time or memory, or could not start.
    FAILED = "failed"
    #: Final: the job was cancelled.
    CANCELLED = "cancelled"
    #: Final: the worker and the processes vanished, and the job may not run again.
    LOST = "lost"

    def __str__(self) -> str:
        return self.value

    @property
    def is_end(self) -> bool:
        """Return whether this state is final."""
        return self in ENDS

    @property
    def is_active(self) -> bool:
        """Return whether a job in this state holds a device."""
        return self in {JobState.STARTING, JobState.RUNNING, JobState.CANCELLING}

    @property
    def in_words(self) -> str:
        """Return the state as the predicate of a sentence: ``is running``, ``has succeeded``, ``was lost``."""
        if self in {JobState.SUCCEEDED, JobState.FAILED}:
            return f"has {self}"
        return f"was {self}" if self.is_end else f"is {self}"


ENDS = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.LOST})

#: All transitions of the lifecycle. None is the state before the job exists. Each script in ``gpuqueue/queue/lua/acts``
#: lists its transitions in its header, and a test compares the two.
TRANSITIONS: Mapping[JobState | None, frozenset[JobState]] = MappingProxyType(
    {
        None: frozenset({JobState.QUEUED, JobState.HELD, JobState.STARTING, JobState.RUNNING, JobState.CANCELLING}),
        JobState.QUEUED: frozenset(
            {JobState.STARTING, JobState.RUNNING, JobState.HELD, JobState.CANCELLING, JobState.CANCELLED}
        ),
        JobState.HELD: frozenset({JobState.QUEUED, JobState.RUNNING, JobState.CANCELLED}),
        JobState.STARTING: frozenset(
            {
                JobState.RUNNING,
                JobState.CANCELLING,
                JobState.QUEUED,
                JobState.HELD,
                JobState.SUCCEEDED,
                JobState.FAILED,
                JobState.LOST,
            }
        ),
        JobState.RUNNING: frozenset(
            {
                JobState.CANCELLING,
                JobState.SUCCEEDED,
                JobState.FAILED,
                JobState.QUEUED,
                JobState.HELD,
                JobState.CANCELLED,
                JobState.LOST,
            }
        ),
        JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.SUCCEEDED, JobState.FAILED}),
    }
)


class WaitReason(str, Enum):
    """Why a queued or held job does not run."""

    #: No device can allocate enough memory now, or other jobs go first.
    MEMORY = "memory"
    #: The queue knows no device that the job may run on, by device kind, pool and placement.
    DEVICE = "device"
    #: The same, and a host that has served GPUs finds none now.
    NO_GPU = "no_gpu"
    #: Devices have enough memory, but their slots are in use.
    SLOTS = "slots"
    #: The job would fit, but the room is reserved for another job.
    RESERVATION = "reservation"
    #: Too few of the devices that the job may run on are not drained.
    DRAINED = "drained"
    #: Too few of the devices that the job may run on have time enough for it before their end.
    END = "end"
    #: Too few of the devices that the job may run on are not reserved for the jobs of others now, by people.
    CALENDAR = "calendar"
    #: Too few of the devices that the job may run on have a worker with a recent heartbeat.
    SILENT = "silent"
    #: A limit of the user or of the user's group leaves no room for the job.
    LIMIT = "limit"
    #: The store lost its data and was rebuilt: nothing starts for one lease.
    PAUSE = "pause"
    #: A user held the job.
    HELD = "held"
    #: The job's runs were lost too often. It waits for a release.
    LOST_TOO_OFTEN = "lost_too_often"
    #: The job's runs asked for a requeue too often. It waits for a release.
    REQUEUED_TOO_OFTEN = "requeued_too_often"
    #: No host that the job may run on can start it: its directory or program is missing. It waits for a release.
    CANNOT_START = "cannot_start"
    #: Dependencies have not ended. For a cancelled job: a dependency ended otherwise than required.
    DEPENDENCY = "dependency"
    #: The job's earliest start is in the future.
    BEGIN = "begin"
    #: The last run failed, and the pause before the retry is not over.
    RETRY = "retry"
    #: The last run asked for a requeue (exit code 75, which is no failure), and the pause before it is not over.
    REQUEUE = "requeue"
    #: The array has reached its concurrency limit.
    ARRAY_LIMIT = "array_limit"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job at one moment: its request and its progress. Times are on the store's clock.

    - ``attempt`` counts the runs so far, ``losses`` the lost ones, ``retries`` those after a failure, ``requeues``
      those that a run asked for (exit code 75), and ``mem_retries`` those after a lack of device memory. With such a
      run the job may get more memory: ``spec`` then has what the job asks for now.
    - ``devices`` are the UUIDs of the devices of the current or last run.
    - ``awaits`` are the dependencies that have not ended, if the queue knows the job. ``begins_at`` is the earliest
      start if it is in the future.
    - ``because`` is why the queue cancelled the job, or why an array is held after a rebuild.
    - ``member`` is set for a member of an array, ``tally`` for an array.
    - ``front`` is set if a user moved the job before the user's other waiting jobs. The highest ``front`` goes first.
    - ``tags`` and ``note`` are texts that users attach to the job.
    - ``promoted`` is the priority to which aging promoted the job, None if the requested one applies. It is known only
      for waiting jobs in the queue.
    - ``marks`` are what looks wrong about the run now. They are known only for running jobs in the queue; those of the
      past are at :class:`gpuqueue.model.run.Run`.
    """

    id: int
    spec: JobSpec
    state: JobState
    submitted_at: datetime
    attempt: int = 0
    losses: int = 0
    reason: WaitReason | None = None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    host: str | None = None
    devices: tuple[str, ...] = ()
    retries: int = 0
    requeues: int = 0
    mem_retries: int = 0
    awaits: tuple[Dependency, ...] = ()
    begins_at: datetime | None = None
    because: str | None = None
    member: Member | None = None
    tally: Tally | None = None
    front: int | None = None
    tags: tuple[str, ...] = ()
    note: str | None = None
    promoted: Priority | None = None
    marks: tuple[RunMark, ...] = ()

    #: What the API sends beside the fields.
    DERIVED = ("idle_since",)

    @property
    def idle_since(self) -> datetime | None:
        """Since when the run has used none of its devices, None if it is not marked as idle."""
        return next((each.since for each in self.marks if each.kind == "idle"), None)

    @property
    def label(self) -> str:
        """Return the display id: ``17``, or ``17_2`` for a member of an array."""
        return str(self.member or self.id)

    def without_secrets(self, env: Mapping[str, str] = MappingProxyType({})) -> Job:
        """Return the job as it is sent and printed: of its environment only *env*, and notifications without secrets.

        It has no ticket, which is for launchers and holds the arguments.
        """
        notifications = tuple(replace(each, to=each.shown) for each in self.spec.notifications)
        return replace(self, spec=replace(self.spec, env=env, ticket=None, notifications=notifications))

    def __str__(self) -> str:
        """Return the name of the job in logs."""
        return f"job {self.label} ({self.spec.name}, {self.spec.account.name}, {format_bytes(self.spec.mem_bytes)})"
