"""What a job is, and where it may stand. Pure: the first file to read.

A **job** is what somebody asked for. Its **spec** is the frozen request. Each time the job is claimed
it gets a new **run** (see :mod:`gpuqueue.model.run`). Where a job stands is its **state**; how a run ended is
its **ending**: two words, because a job can be queued again after a run that ended badly.
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
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.array import Array, Member, Tally
from gpuqueue.model.dependencies import NO_WAITS, Dependency, Waits
from gpuqueue.model.device import DeviceWish
from gpuqueue.model.git import Checkout
from gpuqueue.model.notification import MOST_NOTICES, Notice, NoticeKind
from gpuqueue.model.placement import ANYWHERE, Placement
from gpuqueue.model.retries import NO_RETRIES, Retries
from gpuqueue.model.tags import tags_of
from gpuqueue.model.terminal_size import Window
from gpuqueue.model.warning_signal import EarlySignal
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import MAX_BYTES, MAX_S, MIB, format_bytes


class JobState(str, Enum):
    """Where a job stands, and who moves it on."""

    #: It waits for a device with enough memory. A worker's claim moves it on.
    QUEUED = "queued"
    #: It waits for a person (or was lost too often). ``release`` moves it on.
    HELD = "held"
    #: A worker has claimed it and is about to start it.
    STARTING = "starting"
    #: Its processes are alive under a shim.
    RUNNING = "running"
    #: Somebody asked for its end; the worker moves it on once its processes are gone.
    CANCELLING = "cancelling"
    #: End: it exited with 0.
    SUCCEEDED = "succeeded"
    #: End: it exited with something else, was killed, ran out of time or memory, or could not start.
    FAILED = "failed"
    #: End: somebody cancelled it.
    CANCELLED = "cancelled"
    #: End: its worker and its processes vanished, and it may not run again.
    LOST = "lost"

    def __str__(self) -> str:
        return self.value

    @property
    def is_end(self) -> bool:
        """Return whether a job in this state never moves again."""
        return self in ENDS

    @property
    def is_active(self) -> bool:
        """Return whether a job in this state holds a device."""
        return self in {JobState.STARTING, JobState.RUNNING, JobState.CANCELLING}

    @property
    def said(self) -> str:
        """Return it as one says it of a job: ``is running``, ``has succeeded``, ``was lost``."""
        if self in {JobState.SUCCEEDED, JobState.FAILED}:
            return f"has {self}"
        return f"was {self}" if self.is_end else f"is {self}"


ENDS = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.LOST})

#: Every arrow of the lifecycle. None stands for "not there yet". Each script under ``queue/lua`` repeats
#: its own arrows in its header, and a test holds the two together.
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


class Level(IntEnum):
    """Priority band: a higher level goes first, whoever asks."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    URGENT = 3

    def __str__(self) -> str:
        return self.name.lower()


class WaitReason(str, Enum):
    """Why a queued or held job does not run."""

    #: No device can promise it enough memory right now, or others go first.
    MEMORY = "memory"
    #: The queue knows of no device of the kind, and in the pool, that it may run on.
    DEVICE = "device"
    #: Devices have the memory for it, but as many runs as may be on them at once.
    SLOTS = "slots"
    #: It would have room, were that not kept for another job.
    RESERVATION = "reservation"
    #: Every device that it may run on takes no new job, by somebody's say, or so many that too few are left.
    DRAINED = "drained"
    #: So many devices that it may run on have a worker that was not heard for a while that too few are left.
    SILENT = "silent"
    #: A limit of its user or its group leaves no room for it.
    LIMIT = "limit"
    #: The store lost its data and was rebuilt: nothing starts before one lease is over.
    PAUSE = "pause"
    #: A person held it.
    HELD = "held"
    #: Its runs were lost so often that it waits for a person.
    LOST_TOO_OFTEN = "lost_too_often"
    #: Its runs asked to be requeued so often that it waits for a person.
    REQUEUED_TOO_OFTEN = "requeued_too_often"
    #: Jobs that it is to come after have not ended. Of one that was cancelled: they ended otherwise than it needs.
    DEPENDENCY = "dependency"
    #: It may not start before its time.
    BEGIN = "begin"
    #: Its last run ended badly; the next one may not start before its time.
    RETRY = "retry"
    #: Its last run asked for another one (exit code 75), which may not start before its time. That is no failure.
    REQUEUE = "requeue"
    #: As many members of the array are at it as were asked to be at once.
    ARRAY_LIMIT = "array_limit"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Who asks: the submitting account, taken once at the door and then carried as a value."""

    name: str
    uid: int
    host: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What matters when a job is matched with a device; jobs of one shape are interchangeable there.

    The idea is HTCondor's autocluster: test each distinct shape once, not each job. Memory is rounded up
    to whole MiB and the time limit up to one of a few steps, so that there are few shapes; the job keeps
    its exact figures.
    """

    mem_bytes: int
    #: Seconds, one of TIME_STEPS_S; 0 means no limit.
    time_limit_s: int
    gpus: int
    pool: str
    device: DeviceWish | None = None
    #: What else the job says of its devices (the text of a :class:`gpuqueue.model.placement.Placement`).
    placement: str = ""

    #: Time limits are matched in these steps, in seconds: each at most twice the last, from a minute on one and a half
    #: times. Who would be gone before what is kept for others starts must not be thought to stay for long after.
    TIME_STEPS_S = (
        *(10, 20, 30, 60, 90, 120, 180, 240, 300, 450, 600),
        *(minutes * 60 for minutes in (15, 20, 25, 30, 40, 50, 60, 75, 90, 120, 150, 180, 210, 240, 300)),
        *(hours * 3600 for hours in (6, 7, 8, 10, 12, 14, 16, 20, 24, 30, 36, 48, 60, 72)),
        *(days * 86400 for days in (4, 5, 6, 7, 8, 10, 12, 14, 18, 21, 25, 30)),
    )

    @classmethod
    def of(cls, spec: JobSpec) -> Shape:
        """Return the shape of *spec*; a limit beyond the last step counts as none."""
        limit_s = 0
        if spec.time_limit_s is not None:
            limit_s = next((step for step in cls.TIME_STEPS_S if spec.time_limit_s <= step), 0)
        return cls(-(-spec.mem_bytes // MIB) * MIB, limit_s, spec.gpus, spec.pool, spec.device, str(spec.placement))

    def __str__(self) -> str:
        """Return the text in the store. It ends before the wish where there is none, as it did before there were any.

        So a waiting job of an older version has the shape of one that does not say today, and a worker of an older
        version takes a wish for a part of the pool's name, and a placement for a part of the wish, and leaves the job
        alone.
        """
        text = f"{self.mem_bytes}:{self.time_limit_s}:{self.gpus}:{self.pool}"
        if self.placement:
            return f"{text}:{self.device or ''}:{self.placement}"
        return text if self.device is None else f"{text}:{self.device}"


#: Names that become part of a key in the store: no colon, no space, nothing that a terminal obeys.
_KEY_WORD = pattern(r"[A-Za-z0-9_.@+-]{1,64}")
#: Longest job name, in characters.
MAX_NAME = 128

#: What a field may be. A bool is an int for Python and for nobody else.
_FLAG: tuple[type, ...] = (bool,)
_TEXT_OR_NONE: tuple[type, ...] = (str, type(None))
#: The fields of a request: what messages call each, where it is, what it may be, and how messages say that.
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
    ("the level", "level", (Level,), f"one of {', '.join(map(str, Level))}"),
    ("the device", "device", (DeviceWish, type(None)), f"one of {', '.join(DeviceWish)}"),
    ("pty", "pty", (Window, type(None)), "the size of a terminal"),
    ("placement", "placement", (Placement,), "a Placement"),
    ("signal", "signal", (EarlySignal, type(None)), "an EarlySignal"),
    ("array", "array", (Array, type(None)), "an Array"),
    ("git", "git", (Checkout, type(None)), "a Checkout"),
)
_typed = attrgetter(*(path for _, path, _, _ in _FIELDS))


@lru_cache(maxsize=64)
def _are_right(kinds: tuple[type, ...]) -> bool:
    """Return whether all fields are what they may be: nearly all requests are of the same few combinations."""
    return all(
        issubclass(kind, wanted) and (kind is not bool or wanted is _FLAG)
        for kind, (_, _, wanted, _) in zip(kinds, _FIELDS, strict=True)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """The frozen request.

    ``mem_bytes`` is what the job needs free on *each* of its ``gpus`` devices. ``env`` is the submitter's
    environment; it stays out of ``repr`` because people paste logs and environments hold secrets. ``cap``
    lets the worker tell the job's frameworks to stay within ``mem_bytes``. ``umask`` is the submitter's. ``warm`` says
    that a spare interpreter may become its first process. ``pty`` is the size
    of the terminal that it wants for its output; None: a file will do. ``device`` is
    the kind of device that it wants; None, where nothing is said, means a GPU wherever the queue knows of one
    (:func:`gpuqueue.model.device.suits`). ``placement`` is what it says of its devices beside that.
    ``waits`` is what it waits for beside a device, ``retries`` how often it runs again after a failure.
    ``script`` and ``interpreter`` are set when the job is a Python script. ``snapshot`` is the place of a
    content-addressed copy of the code beside ``cwd``; nothing fills it yet. ``signal`` goes to the first process some
    time before the time limit. ``array`` is there where many such jobs are asked for in one. ``notices`` say whom to
    tell when it has ended for good. ``retry_of`` is the id of the job of which this is another try, where somebody
    asked for one. ``tags`` are the words that it is to be found by from the start. ``git`` is what
    ``cwd`` had checked out when it was submitted. ``separate_stderr`` gives
    standard error a file of its own.
    """

    argv: tuple[str, ...]
    cwd: str
    account: Account
    mem_bytes: int
    name: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    gpus: int = 1
    device: DeviceWish | None = None
    placement: Placement = ANYWHERE
    time_limit_s: float | None = None
    level: Level = Level.NORMAL
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
    notices: tuple[Notice, ...] = ()
    retry_of: int | None = None
    tags: tuple[str, ...] = ()
    git: Checkout | None = None
    separate_stderr: bool = False

    def __post_init__(self) -> None:
        """Refuse what could never run.

        Raises:
            BadRequest: a field is out of range or holds a character that no process could be given.

        """
        self._check_types()
        if not self.argv or not self.argv[0]:
            raise BadRequest("there is no command to run: name a script, or put a command after --")
        if not 0 < self.mem_bytes <= MAX_BYTES:
            asked = brief(self.mem_bytes)
            raise BadRequest(f"a job cannot ask for {asked} bytes of memory: give a size above 0, at most 1024T")
        self._check_devices()
        self._check_course()
        self._check_notices()
        if self.retry_of is not None and not 0 < self.retry_of <= 2**53:
            raise BadRequest(f"a job is another try of a job by its id, not of {brief(self.retry_of)}")
        if not self.name or len(self.name) > MAX_NAME:
            raise BadRequest(f"a job's name must have 1 to {MAX_NAME} characters")
        if not self.cwd.startswith("/"):
            raise BadRequest(f"the working directory {brief(self.cwd)} is not absolute")
        for what, word in (("user", self.account.name), ("pool", self.pool or "x")):
            if not _KEY_WORD.fullmatch(word):
                raise BadRequest(f"{brief(word)} is no usable {what} name: letters, digits and _ . @ + - only")
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

    def _check_notices(self) -> None:
        notices: object = self.notices
        if not isinstance(notices, tuple) or not all(isinstance(each, Notice) for each in notices):
            raise BadRequest(f"notices must be a tuple of Notice, not {brief(notices)}")
        if len(self.notices) > MOST_NOTICES:
            raise BadRequest(f"a job can tell at most {MOST_NOTICES} targets of its end, not {len(self.notices)}")
        if self.array is not None and any(each.kind is NoticeKind.COMMAND for each in self.notices):
            raise BadRequest(
                "no command can run at the end of an array, which is nowhere: submit a job with --after ID:any"
            )

    def _check_devices(self) -> None:
        if not 1 <= self.gpus <= 64:  # noqa: PLR2004 - no host has more
            raise BadRequest(f"a job cannot ask for {brief(self.gpus)} devices: give a number from 1 to 64")
        if self.device is DeviceWish.CPU and self.gpus > 1:
            raise BadRequest(f"a host serves its CPU as one device, not as {self.gpus}: leave out --gpus")
        if self.placement.devices and len(self.placement.devices) < self.gpus:
            raise BadRequest(
                f"{self.gpus} devices asked for, and {len(self.placement.devices)} named: name as many, or more"
            )

    def _check_types(self) -> None:
        """Refuse what a program, unlike the command line, could hand in: a float for a size, a number for a name."""
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
        """Return what matters when this job is matched with a device."""
        return Shape.of(self)

    @property
    def command(self) -> str:
        """Return the command line as one would type it into a shell."""
        return shlex.join(self.argv)

    def of_member(self, member: Member) -> JobSpec:
        """Return what the *member* of this array is to run: its own values in the arguments and the environment.

        It waits for nothing but a device: its array has waited for the rest, and tells of its end for all of them.
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
            notices=(),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job as it stands at one moment: its request, and how far it has come.

    ``attempt`` counts the runs so far, ``losses`` those that vanished with their worker, ``retries`` those after a
    failure, ``requeues`` those that a run asked for (exit 75). Times are on the store's clock. ``devices`` holds the
    UUIDs of the current or last run. ``awaits`` are the jobs whose end it still waits for, as far as the queue tells;
    ``begins_at`` is when it may start, where that is to come; ``because`` why it was cancelled, where nobody did, or
    why an array cannot go on. ``member`` says whose member it is, ``tally`` how far it has come where it is an array
    itself. ``front`` is not None where it was moved before all others of its user that waited then: of several the
    highest goes first. ``tags`` are the words that it can be found by, ``note`` is what somebody has to say of it.
    ``lifted`` is the level to which waiting has lifted it, None where it counts as was asked for; only the queue tells,
    of what waits.
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
    lifted: Level | None = None

    @property
    def label(self) -> str:
        """Return what people call it: ``17``, or ``17_2`` where it is a member of an array."""
        return str(self.member or self.id)

    def __str__(self) -> str:
        """Return the one name by which logs call a job."""
        return f"job {self.label} ({self.spec.name}, {self.spec.account.name}, {format_bytes(self.spec.mem_bytes)})"
