"""What the web page gets: the rows of its tables, the view of one job, and the form for a new job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.calendar import CalendarReservation
from gpuqueue.model.dependencies import Condition
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job import JobState, WaitReason
from gpuqueue.model.job_spec import Account, Priority
from gpuqueue.model.run import Ending, EndingKind, Note, Record
from gpuqueue.model.run_mark import RunMark


class RowSort(str, Enum):
    """What the rows of the queue are sorted by. ``state``: those that hold a device first."""

    ID = "id"
    NAME = "name"
    USER = "user"
    STATE = "state"
    MEM = "mem"
    USED = "used"
    PRIORITY = "priority"
    SUBMITTED = "submitted"
    STARTED = "started"
    #: The order in which waiting jobs start if room comes: behind those that run, before those that wait otherwise.
    PLACE = "place"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Members:
    """How many members an array has, and how many of them wait, are held and have ended. The others have own rows.

    ``running`` of these hold a device.
    """

    total: int
    waiting: int
    held: int
    ended: int
    failed: int
    running: int = 0

    #: What the API sends beside the fields.
    DERIVED = ("words",)

    @property
    def words(self) -> str:
        """How far the array has come, in words."""
        rest = ((self.failed, "failed"), (self.running, "running"), (self.waiting, "waiting"), (self.held, "held"))
        return ", ".join([f"{self.ended} of {self.total} members ended", *(f"{n} {what}" for n, what in rest if n)])


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueRow:
    """One job that has not ended. ``used_bytes`` is what its run used in the last sample, on all its devices.

    ``priority`` is the current one, ``asked_priority`` the requested one. ``array_id`` is set for a member of an array.
    ``idle_since`` is since when its run has used none of its devices, if it is marked as idle.
    """

    id: int
    label: str
    name: str
    user: str
    uid: int
    state: JobState
    priority: Priority
    asked_priority: Priority
    mem_bytes: int
    gpus: int
    submitted_at: datetime
    whole: bool = False
    pool: str = ""
    tags: tuple[str, ...] = ()
    note: str | None = None
    reason: WaitReason | None = None
    #: The reason in a sentence, in an answer of the service.
    waits: str | None = None
    begins_at: datetime | None = None
    started_at: datetime | None = None
    time_limit_s: float | None = None
    host: str | None = None
    devices: tuple[str, ...] = ()
    #: Host and devices of its run as people write them, ``nodeA:0``, in an answer of the service.
    where: str | None = None
    used_bytes: int | None = None
    idle_since: datetime | None = None
    #: What looks wrong about its run, for all who see the row.
    marks: tuple[RunMark, ...] = ()
    attempt: int = 0
    array_id: int | None = None
    members: Members | None = None
    #: Set if it was moved before the other jobs of its user. The highest goes first.
    front: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueTable:
    """A part of the queue. ``total`` is the number of jobs that match, ``rows`` are those from ``offset`` on.

    ``counts`` are all jobs that the caller may see, by state, regardless of the filters, and ``idle`` are those of them
    that are marked as idle. ``users``, ``pools`` and ``tags`` are what the filters can choose. The table is complete
    unless the service has just begun to read the queue; ``left_out``: there are more jobs than it reads, the newest are
    missing.
    """

    at: datetime
    offset: int
    total: int
    rows: tuple[QueueRow, ...]
    counts: Mapping[str, int]
    idle: int = 0
    users: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    complete: bool = True
    left_out: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlace:
    """The place of a waiting job: how many jobs go before it, and when it may start.

    ``start_at`` is known only if no other job may take the room, and every run in the way has a time limit.
    ``reserved``: devices are reserved for the job. ``never``: no device can run it as the site is now. ``words`` say
    this, but for the times. ``runs`` are the jobs that must end first, if no other job may take the room then.
    ``about_at`` is when they have probably ended, by their progress, if that of all is known.
    """

    ahead: int
    words: str
    start_at: datetime | None = None
    about_at: datetime | None = None
    runs: tuple[int, ...] = ()
    reserved: bool = False
    never: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRun:
    """A run on a device. Of a job that the caller may not see, only the memory is known.

    ``idle_since`` is since when it has used none of its devices, if it is marked as idle.
    """

    job_id: int
    allocated_bytes: int
    used_bytes: int
    label: str | None = None
    name: str | None = None
    user: str | None = None
    ends_at: datetime | None = None
    idle_since: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExternalUse:
    """The memory that the external processes of one user hold on a device; None if the driver does not say.

    ``job_id`` is the job that they belong to, if that was given other devices, and ``label`` its name.
    """

    user: str | None
    processes: int
    held_bytes: int | None
    commands: tuple[str, ...] = ()
    job_id: int | None = None
    label: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceView:
    """A device as the overview shows it. ``free_bytes`` is what a new job could be allocated now.

    ``used_bytes`` is what all runs use. ``free_at`` is when its runs must have ended, None if one has no time limit.
    ``trouble`` is why it takes no jobs now, ``drained`` why it is drained, ``ends_at`` when it will be, and why
    (``end_reason``, None without a reason), ``reserved_for`` the job that it is reserved
    for. ``silent_s`` is how long its worker has been silent, None if it is not. ``beside_bytes`` is what jobs on one
    device can be allocated beside the job that it is reserved for, ``reserved_until`` when that job must have ended.
    ``closed`` is why no job is given all of its free memory, such as that it is drained. ``errors`` are phrases about
    its memory errors and its last Xid error. ``calendar`` is what people have reserved it for and is not over, and
    ``calendar_words`` are about the first of these.
    """

    uuid: str
    host: str
    index: int
    name: str
    kind: DeviceKind
    pool: str
    total_bytes: int
    headroom_bytes: int
    allocated_bytes: int
    used_bytes: int
    external_bytes: int | None
    free_bytes: int
    slots: int
    exclusive: bool = False
    mig_parent: str | None = None
    runs: tuple[DeviceRun, ...] = ()
    external: tuple[ExternalUse, ...] = ()
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    free_at: datetime | None = None
    trouble: str | None = None
    drained: str | None = None
    ends_at: datetime | None = None
    end_reason: str | None = None
    reserved_for: int | None = None
    beside_bytes: int | None = None
    reserved_until: datetime | None = None
    silent_s: float | None = None
    refusals: str | None = None
    closed: str | None = None
    errors: tuple[str, ...] = ()
    calendar: tuple[CalendarReservation, ...] = ()
    calendar_words: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """All devices, and how many jobs there are by state. ``history_away``: it does not answer.

    ``in_line`` is how many of those that wait take room as soon as there is some: the others wait for something else.
    """

    at: datetime
    devices: tuple[DeviceView, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    in_line: int = 0
    history_away: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePast:
    """The last hours of a device in equal steps, the newest last: most used memory, and mean utilisation, 0 to 1.

    None where nothing was seen: no service ran, its worker was silent, or the driver does not say.
    """

    used: tuple[float | None, ...] = ()
    utilisation: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicesPast:
    """The last hours of all devices by UUID. ``at`` is the end of the newest step, ``step_s`` the length of each."""

    at: datetime
    step_s: int
    devices: Mapping[str, DevicePast] = field(default_factory=dict)


class MemberSort(str, Enum):
    """What the members of an array are sorted by. Unknown values are last.

    ``value``: one value of their sweep. ``metric``: the last value of a metric.
    """

    INDEX = "index"
    STATE = "state"
    DURATION = "duration"
    PEAK = "peak"
    VALUE = "value"
    METRIC = "metric"

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

    #: What the API sends beside the fields.
    DERIVED = ("must",)

    @property
    def must(self) -> str:
        """What the condition demands of the job, in words; empty without one."""
        return "" if self.condition is None else f"must have {self.condition.ended}"


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

    ``verdict`` compares the memory that it asked for with what it used; None while no run has ended. ``failures`` says
    of each failed run, by its attempt, what its ending means and what helps. ``after`` are the jobs that it waits for
    or has waited for, ``before`` those that wait for it, ``retries`` the newest ones that run it again. ``values`` are
    those of its sweep, if it is a member of one. ``idle`` is the last message to the owner about a run that is marked
    as idle, such as what happens next. ``away`` is why the store or the history does not answer: then a part is
    missing.

    ``ended`` is how an ended job ended, empty if its state says it all.

    ``asked`` is what it asks for, ``use`` how much of the memory it may use, ``limits`` the most that it may use of its
    host, ``git`` the checkout of its code, ``command`` its command line as for a shell, and ``again`` which code a
    retry of it runs.
    """

    at: datetime
    record: Record
    rights: Rights
    asked: str
    command: str
    again: str
    use: str
    ended: str = ""
    limits: str | None = None
    git: str | None = None
    verdict: str | None = None
    failures: Mapping[int, str] = field(default_factory=dict)
    after: tuple[Related, ...] = ()
    before: tuple[Related, ...] = ()
    retries: tuple[Related, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    idle: Note | None = None
    away: str | None = None


class StepKind(str, Enum):
    """What a step of a story is: a change, a wait, the course of a run, a good or a bad end, or a note."""

    STEP = "step"
    WAIT = "wait"
    RUN = "run"
    GOOD = "good"
    BAD = "bad"
    NOTE = "note"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class StoryStep:
    """One step in the story of a job, in words. The reader adds the figures, in the reader's own form.

    ``words`` of a wait are what the job waited for; its ``duration_s`` is None while it goes on. ``duration_s`` of the
    end of a run is how long that took. ``until`` is a time at the end of ``detail``, ``for_job`` the job that the step
    was for.
    """

    at: datetime
    kind: StepKind
    words: str
    detail: str = ""
    duration_s: float | None = None
    until: datetime | None = None
    for_job: int | None = None


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

    ``id`` is that of its job once a device has taken it. ``used_bytes`` is what its run used in the last sample.
    ``metrics`` are the last values that its run reported, as far as they are finite numbers.
    """

    #: What the API sends beside the fields.
    DERIVED = ("ended",)

    id: int
    index: int
    state: JobState | None
    values: tuple[str, ...] = ()
    host: str | None = None
    #: As in :class:`QueueRow`.
    where: str | None = None
    started_at: datetime | None = None
    duration_s: float | None = None
    peak_bytes: int | None = None
    used_bytes: int | None = None
    exit_code: int | None = None
    ending: EndingKind | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def ended(self) -> str:
        """How its last run ended, in a few words; empty if it has not, or if there is no more to say than its state."""
        if self.ending is None or self.exit_code == 0:
            return ""
        return Ending(kind=self.ending, exit_code=self.exit_code).brief


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberTable:
    """A part of the members of an array, from ``offset`` on. ``axes`` are the names of the values of its sweep.

    ``total`` is the number of members that match, ``counts`` are all members by state, ``metrics`` are the names of
    what these rows have reported. ``sortable``: the array is small enough to be sorted by anything but the index, and
    filtered.
    """

    at: datetime
    total: int
    offset: int
    rows: tuple[MemberRow, ...]
    axes: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    sortable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class JobForm:
    """A job as a person types it, in the forms of the options of ``gpuqueue submit``. Empty texts are empty fields.

    ``script`` is the name of a file, and ``snapshot`` the address of a snapshot that has this file at its top.
    ``args`` are the script's arguments, quoted as for a shell, and ``tags`` words. ``python`` is the interpreter of a
    ``.py`` script, as its host knows it.

    A new job can be an array (``array``, or ``sweep`` with a parameter on each line, and ``at_once``), wait for other
    jobs (``after``), and name targets to notify (``on_end``, ``on_fail``). A job to run again ignores these fields.
    """

    script: str = ""
    snapshot: str = ""
    environment: str = ""
    python: str = ""
    args: str = ""
    mem: str = ""
    gpus: int = 1
    device: str = ""
    time_limit: str = ""
    cpus: str = ""
    cpu_mem: str = ""
    name: str = ""
    priority: str = "normal"
    pool: str = ""
    tags: str = ""
    array: str = ""
    sweep: str = ""
    at_once: str = ""
    after: str = ""
    on_end: str = ""
    on_fail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FormStart:
    """What the form begins with, and what its fields can choose.

    For a job to run again, ``form`` has its values, ``label`` its name, ``command`` its command line, ``what`` says
    what the new job is, and ``again`` which code it runs. After a lack of memory ``form`` asks for more, and ``advice``
    says so. ``has_script`` says whether its arguments can change, and ``warnings`` what the new job will not have.
    ``devices`` are names such as ``nodeA:0``, and ``targets`` those of notifications that this site can send. A script
    may have ``file_bytes``.
    """

    form: JobForm
    file_bytes: int
    label: str | None = None
    command: str | None = None
    what: str | None = None
    again: str | None = None
    advice: str | None = None
    has_script: bool = True
    warnings: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
