"""Jobs, their specs and their states. Pure. Read this file first.

A **job** has a **spec**, the frozen request of its submitter. Each claim of the job creates a new **run** (see
:mod:`gpuqueue.model.run`). A job has a **state**, and a run has an **ending**. They differ, because a job can be queued
again after a run that failed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime
from enum import Enum, IntEnum
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.array import Array, Member, Tally
from gpuqueue.model.dependencies import NO_WAITS, Dependency, Waits
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.git import Checkout
from gpuqueue.model.notification import MOST_NOTIFICATIONS, Notification
from gpuqueue.model.placement import ANYWHERE, Placement
from gpuqueue.model.retries import NO_RETRIES, Retries
from gpuqueue.model.tags import tags_of
from gpuqueue.model.terminal_size import Window
from gpuqueue.model.warning_signal import EarlySignal
from gpuqueue.text.sanitize import brief, name_of
from gpuqueue.text.units import MAX_BYTES, MAX_S, MIB, format_bytes


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


class Priority(IntEnum):
    """Priority of a job. Jobs of a higher priority go first, regardless of their user."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    URGENT = 3

    def __str__(self) -> str:
        return self.name.lower()


class WaitReason(str, Enum):
    """Why a queued or held job does not run."""

    #: No device can allocate enough memory now, or other jobs go first.
    MEMORY = "memory"
    #: The queue knows no device that the job may run on, by device kind, pool and placement.
    DEVICE = "device"
    #: Devices have enough memory, but their slots are in use.
    SLOTS = "slots"
    #: The job would fit, but the room is reserved for another job.
    RESERVATION = "reservation"
    #: Too few of the devices that the job may run on are not drained.
    DRAINED = "drained"
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
class Account:
    """The account that submits a job, read once at submit."""

    name: str
    uid: int
    host: str


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a job's request that decides which devices it fits. Jobs of one shape are interchangeable.

    The idea is HTCondor's autocluster: each distinct shape is tested once, instead of each job. Memory is rounded up to
    whole MiB and the time limit to one of a few steps, so that there are few shapes. The job keeps its exact figures.
    """

    mem_bytes: int
    #: Seconds, one of TIME_STEPS_S; 0 means no limit.
    time_limit_s: int
    gpus: int
    pool: str
    device: DeviceFilter | None = None
    #: The text of the job's :class:`gpuqueue.model.placement.Placement`.
    placement: str = ""

    #: Steps of time limits, in seconds. Each is at most twice the previous one, and at most 1.5 times from a minute on.
    #: With coarser steps, short jobs would seem to run into a reservation that they do not touch.
    TIME_STEPS_S = (
        *(10, 20, 30, 60, 90, 120, 180, 240, 300, 450, 600),
        *(minutes * 60 for minutes in (15, 20, 25, 30, 40, 50, 60, 75, 90, 120, 150, 180, 210, 240, 300)),
        *(hours * 3600 for hours in (6, 7, 8, 10, 12, 14, 16, 20, 24, 30, 36, 48, 60, 72)),
        *(days * 86400 for days in (4, 5, 6, 7, 8, 10, 12, 14, 18, 21, 25, 30)),
    )

    @classmethod
    def of(cls, spec: JobSpec) -> Shape:
        """Return the shape of *spec*. A time limit beyond the last step counts as no limit."""
        limit_s = 0
        if spec.time_limit_s is not None:
            limit_s = next((step for step in cls.TIME_STEPS_S if spec.time_limit_s <= step), 0)
        return cls(-(-spec.mem_bytes // MIB) * MIB, limit_s, spec.gpus, spec.pool, spec.device, str(spec.placement))

    def __str__(self) -> str:
        """Return the text in the store. It omits the device kind and the placement if the job has none."""
        text = f"{self.mem_bytes}:{self.time_limit_s}:{self.gpus}:{self.pool}"
        if self.placement:
            return f"{text}:{self.device or ''}:{self.placement}"
        return text if self.device is None else f"{text}:{self.device}"


#: Longest job name, in characters.
MAX_NAME = 128

#: Types of flags and of optional texts. Other fields refuse a bool, although Python's bool is an int.
_FLAG: tuple[type, ...] = (bool,)
_TEXT_OR_NONE: tuple[type, ...] = (str, type(None))
#: The fields of a spec: name in messages, attribute path, allowed types, name of the types in messages.
_FIELDS: tuple[tuple[str, str, tuple[type, ...], str], ...] = (
    ("mem", "mem_bytes", (int,), "a whole number"),
    ("gpus", "gpus", (int,), "a whole number"),
    ("the time limit", "time_limit_s", (int, float, type(None)), "a number of seconds"),
    ("name", "name", (str,), "text"),
    ("cwd", "cwd", (str,), "text"),
    ("pool", "pool", (str,), "text"),
    ("the account's name", "account.name", (str,), "text"),
    ("the account's uid", "account.uid", (int,), "a whole number"),
    ("the account's host", "account.host", (str,), "text"),
    ("umask", "umask", (int,), "a whole number"),
    ("requeue", "requeue", _FLAG, "true or false"),
    ("cap", "cap", _FLAG, "true or false"),
    ("separate_stderr", "separate_stderr", _FLAG, "true or false"),
    ("warm", "warm", _FLAG, "true or false"),
    ("script", "script", _TEXT_OR_NONE, "text"),
    ("interpreter", "interpreter", _TEXT_OR_NONE, "text"),
    ("snapshot", "snapshot", _TEXT_OR_NONE, "text"),
    ("the command", "argv", (tuple,), "a tuple of words"),
    ("the environment", "env", (Mapping,), "a mapping of names to values"),
    ("waits", "waits", (Waits,), "a Waits"),
    ("retries", "retries", (Retries,), "a Retries"),
    ("retry_of", "retry_of", (int, type(None)), "a whole number"),
    ("tags", "tags", (tuple,), "a tuple of words"),
    ("the priority", "priority", (Priority,), f"one of {', '.join(map(str, Priority))}"),
    ("the device", "device", (DeviceFilter, type(None)), f"one of {', '.join(DeviceFilter)}"),
    ("pty", "pty", (Window, type(None)), "the size of a terminal"),
    ("placement", "placement", (Placement,), "a Placement"),
    ("signal", "signal", (EarlySignal, type(None)), "an EarlySignal"),
    ("array", "array", (Array, type(None)), "an Array"),
    ("git", "git", (Checkout, type(None)), "a Checkout"),
)
_typed = attrgetter(*(path for _, path, _, _ in _FIELDS))


@lru_cache(maxsize=64)
def _are_right(kinds: tuple[type, ...]) -> bool:
    """Return whether all fields have an allowed type. Cached, since most requests have the same few combinations."""
    return all(
        issubclass(kind, wanted) and (kind is not bool or wanted is _FLAG)
        for kind, (_, _, wanted, _) in zip(kinds, _FIELDS, strict=True)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """The frozen request of a job.

    - ``mem_bytes`` is the memory that the job needs on *each* of its ``gpus`` devices. With ``cap``, the worker limits
      the job's frameworks to it.
    - ``device`` is the device kind. None means a GPU if the queue knows one (:func:`gpuqueue.model.device.suits`).
      ``placement`` restricts the devices further.
    - ``env`` is the submitter's environment. It may hold secrets, so ``repr`` omits it. ``umask`` is the submitter's.
    - ``script`` and ``interpreter`` are set if the job is a Python script. ``snapshot`` is the path of a
      content-addressed copy of the code; nothing sets it yet. ``git`` is the checkout of ``cwd`` at submit.
    - With ``warm``, the submitter states that a warm interpreter may become the first process.
    - ``pty`` is the size of the job's terminal, None for output to a file. ``separate_stderr`` writes standard error to
      a file of its own.
    - ``waits`` is what the job waits for besides a device. ``retries`` is how often it runs again after a failure.
      ``signal`` is sent to the first process before the time limit.
    - ``array`` is set if the job is an array.
    - ``notifications`` are the notifications to send at the final end of the job.
    - ``retry_of`` is the id of the job that a user retries with this one. ``tags`` are the initial tags.
    """

    argv: tuple[str, ...]
    cwd: str
    account: Account
    mem_bytes: int
    name: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    gpus: int = 1
    device: DeviceFilter | None = None
    placement: Placement = ANYWHERE
    time_limit_s: float | None = None
    priority: Priority = Priority.NORMAL
    pool: str = ""
    requeue: bool = True
    cap: bool = True
    umask: int = 0o022
    warm: bool = False
    pty: Window | None = None
    script: str | None = None
    interpreter: str | None = None
    snapshot: str | None = None
    waits: Waits = NO_WAITS
    retries: Retries = NO_RETRIES
    array: Array | None = None
    signal: EarlySignal | None = None
    notifications: tuple[Notification, ...] = ()
    retry_of: int | None = None
    tags: tuple[str, ...] = ()
    git: Checkout | None = None
    separate_stderr: bool = False

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: a field is of the wrong type, is out of range or holds a NUL character.

        """
        self._check_types()
        if not self.argv or not self.argv[0]:
            raise BadRequest("there is no command to run: name a script, or put a command after --")
        if not 0 < self.mem_bytes <= MAX_BYTES:
            asked = brief(self.mem_bytes)
            raise BadRequest(f"a job cannot ask for {asked} bytes of memory: give a size above 0, at most 1024T")
        self._check_devices()
        self._check_course()
        self._check_notifications()
        if self.retry_of is not None and not 0 < self.retry_of <= 2**53:
            raise BadRequest(f"retry_of must be the id of a job, not {brief(self.retry_of)}")
        if not self.name:
            raise BadRequest("--name is empty: give a name, or leave out the option")
        if len(self.name) > MAX_NAME:
            raise BadRequest(f"a job's name must have 1 to {MAX_NAME} characters")
        if not self.cwd.startswith("/"):
            raise BadRequest(f"the working directory {brief(self.cwd)} is not absolute")
        for what, word in (("user", self.account.name), ("pool", self.pool or "x")):
            name_of(f"usable {what} name", word)
        texts = (*self.argv, self.cwd, self.name, self.account.host, *self.env, *self.env.values())
        if "\0" in "".join(texts):
            raise BadRequest(
                "an argument, the environment or a path holds a NUL character, which no process can be given"
            )

    def _check_course(self) -> None:
        if self.retries.times and not self.requeue:
            raise BadRequest("a job that must not run twice cannot be retried: leave out --retries or --no-requeue")
        if self.time_limit_s is not None and not 0 < self.time_limit_s <= MAX_S:
            raise BadRequest("a time limit must be above 0 and at most ten years")
        if self.signal is not None:
            self.signal.check(self.time_limit_s)
        if self.pty is not None and self.separate_stderr:
            raise BadRequest("a terminal has one output: choose --pty or --separate-stderr")

    def _check_notifications(self) -> None:
        notifications: object = self.notifications
        if not isinstance(notifications, tuple) or not all(isinstance(each, Notification) for each in notifications):
            raise BadRequest(f"notifications must be a tuple of Notification, not {brief(notifications)}")
        if len(self.notifications) > MOST_NOTIFICATIONS:
            raise BadRequest(f"a job can notify at most {MOST_NOTIFICATIONS} targets, not {len(self.notifications)}")

    def _check_devices(self) -> None:
        if not 1 <= self.gpus <= 64:  # noqa: PLR2004 - more than any host has
            raise BadRequest(f"a job cannot ask for {brief(self.gpus)} devices: give a number from 1 to 64")
        if self.device is DeviceFilter.CPU and self.gpus > 1:
            raise BadRequest(f"a host serves its CPU as one device, not as {self.gpus}: leave out --gpus")
        if self.placement.devices and len(self.placement.devices) < self.gpus:
            raise BadRequest(
                f"{self.gpus} devices asked for, and {len(self.placement.devices)} named: name as many, or more"
            )

    def _check_types(self) -> None:
        """Refuse values of a wrong type, which a program can pass and the command line cannot."""
        if not isinstance(self.account, Account):
            raise BadRequest(f"the account must be an Account, not {brief(self.account)}")
        values = _typed(self)
        if not _are_right(tuple(map(type, values))):
            for (what, _, wanted, words), value in zip(_FIELDS, values, strict=True):
                if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not _FLAG):
                    raise BadRequest(f"{what} must be {words}, not {brief(value)}")
        tags_of(self.tags)
        if not 0 <= self.umask <= 0o777:  # noqa: PLR2004 - three digits of three bits
            raise BadRequest(f"{brief(self.umask)} is no umask: it has three octal digits")
        texts = (*self.argv, *self.env, *self.env.values())
        if {*map(type, texts)} != {str} and not all(isinstance(text, str) for text in texts):
            raise BadRequest("every argument, and every variable of the environment, must be text")

    @property
    def shape(self) -> Shape:
        """Return the shape of this request."""
        return Shape.of(self)

    @property
    def command(self) -> str:
        """Return the command line, quoted for a shell."""
        return shlex.join(self.argv)

    def of_member(self, member: Member) -> JobSpec:
        """Return the spec of *member*, with its own values in the arguments and the environment.

        The member waits only for a device and has no notifications: those belong to the array.
        """
        if self.array is None:
            return self
        array, index = self.array, member.index
        env = {**self.env, **array.environment(index, member.array_id)}
        return replace(
            self,
            argv=tuple(array.fill(word, index) for word in self.argv),
            env=env,
            array=None,
            waits=NO_WAITS,
            notifications=(),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job at one moment: its request and its progress. Times are on the store's clock.

    - ``attempt`` counts the runs so far, ``losses`` the lost ones, ``retries`` those after a failure, ``requeues``
      those that a run asked for (exit code 75).
    - ``devices`` are the UUIDs of the devices of the current or last run.
    - ``awaits`` are the dependencies that have not ended, if the queue knows the job. ``begins_at`` is the earliest
      start if it is in the future.
    - ``because`` is why the queue cancelled the job, or why an array is held after a rebuild.
    - ``member`` is set for a member of an array, ``tally`` for an array.
    - ``front`` is set if a user moved the job before the user's other waiting jobs. The highest ``front`` goes first.
    - ``tags`` and ``note`` are texts that users attach to the job.
    - ``promoted`` is the priority to which aging promoted the job, None if the requested one applies. It is known only
      for waiting jobs in the queue.
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
    awaits: tuple[Dependency, ...] = ()
    begins_at: datetime | None = None
    because: str | None = None
    member: Member | None = None
    tally: Tally | None = None
    front: int | None = None
    tags: tuple[str, ...] = ()
    note: str | None = None
    promoted: Priority | None = None

    @property
    def label(self) -> str:
        """Return the display id: ``17``, or ``17_2`` for a member of an array."""
        return str(self.member or self.id)

    def __str__(self) -> str:
        """Return the name of the job in logs."""
        return f"job {self.label} ({self.spec.name}, {self.spec.account.name}, {format_bytes(self.spec.mem_bytes)})"
