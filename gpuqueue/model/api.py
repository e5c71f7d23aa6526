"""Bodies of requests and answers of the HTTP API that are no values of the queue itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.array import Indexes
from gpuqueue.model.history_query import FoldedRow
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_request import JobEdit
from gpuqueue.model.job_spec import JobTerms
from gpuqueue.model.run import Record
from gpuqueue.model.terminal_size import Window

#: Longest command for a running job, in bytes.
MAX_COMMAND_BYTES = 128 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class NewJob(JobTerms):
    """A job to submit: its terms, and what the caller knows about its memory.

    The account is the caller's. Without ``name``, the job has that of its program. Without ``mem_bytes``, the site
    decides; ``default_mem_bytes`` comes before its default. With ``auto_mem`` the job asks for what earlier runs used,
    else for ``estimated_mem_bytes``, the result of a dry run at the caller's.
    """

    mem_bytes: int | None = None
    name: str | None = None
    auto_mem: bool = False
    estimated_mem_bytes: int | None = None
    default_mem_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NewJobs:
    """Jobs to submit in their order, and the variables that all of them have."""

    jobs: tuple[NewJob, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryRequest:
    """How an ended job runs again. None leaves the arguments of its script as they were.

    Variables of the first submission that were removed come from ``fallback_env``; ``env`` is added to all others.
    ``python`` is another interpreter of its script.
    """

    args: tuple[str, ...] | None = None
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    fallback_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    changes: JobEdit = JobEdit()


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtendRequest:
    """How much to add to the time limit of a job: seconds, or a duration such as ``2h``."""

    time: str | float


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveRequest:
    """Where a waiting job goes: before the other jobs of its user, or back to its place by arrival."""

    front: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """The state of a job that was moved."""

    state: JobState


@dataclass(frozen=True, kw_only=True, slots=True)
class TagRequest:
    """Tags to add to a job, or to remove from it."""

    words: tuple[str, ...]
    remove: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteRequest:
    """The note of a job. An empty text removes it."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitRequest:
    """Jobs to wait for. The answer comes when one has ended, or at the latest after *timeout_s*.

    ``held`` are those of the jobs that the caller knows to be held. The answer also comes when that has changed.
    """

    jobs: tuple[str, ...]
    timeout_s: float = 0.0
    held: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedJob:
    """A job, and the name by which the caller asked for it."""

    name: str
    job: Job


@dataclass(frozen=True, kw_only=True, slots=True)
class Waited:
    """The jobs of a WaitRequest that have ended, and those that are held."""

    ended: tuple[NamedJob, ...] = ()
    held: tuple[NamedJob, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryPage:
    """A page of the history. ``after_id`` is the value of that parameter for the next page, None on the last one."""

    records: tuple[Record, ...]
    after_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldedPage:
    """A page of the history with folded arrays. ``after_id`` is that parameter for the next page, None on the last."""

    rows: tuple[FoldedRow, ...]
    after_id: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NeverBegan:
    """The members of an array that were cancelled before any worker claimed them."""

    indexes: Indexes


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceChoice:
    """Devices by the names that users type. A bare index, and ``all_here``, mean devices of *host*.

    ``reason`` and ``at`` are for a drain: ``at`` is when it begins to hold, None means now.
    """

    devices: tuple[str, ...] = ()
    host: str = ""
    all_here: bool = False
    reason: str = ""
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservationRequest:
    """Devices to reserve by the calendar, named as in :class:`DeviceChoice`.

    ``begins_at`` None is now, and no ``users`` are the caller.
    """

    ends_at: datetime
    begins_at: datetime | None = None
    users: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    host: str = ""
    all_here: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Whether:
    """The answer to a question of yes or no, and why. ``why`` may be None."""

    answer: bool
    why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What is wrong with a field of a request; ``field`` is a path such as ``waits.after[0]``, empty for the whole."""

    field: str
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """An error, as in RFC 9457. ``error`` is its class, and ``exit_code`` that of the command line.

    ``faults`` are all that is wrong with the fields of the request, as far as it is known by field.
    """

    type: str
    title: str
    status: int
    detail: str
    error: str
    exit_code: int
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one job of a list: the job, or why it was refused."""

    job: Job | None = None
    problem: Problem | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ManyJobs:
    """What became of the jobs of a list, in its order."""

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotLimits:
    """The largest snapshot of code that this site takes, the largest file in one, and the most files."""

    total_bytes: int
    file_bytes: int
    files: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NewSnapshot:
    """The manifest of a snapshot of code, as its canonical text.

    ``diff`` is the SHA-256 of a further blob: a text about how the files differ from a commit.
    """

    manifest: str = field(repr=False)
    diff: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotState:
    """The address of a snapshot, and the SHA-256 of each blob that the caller must send before it can be used."""

    address: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentPart:
    """A part of a file's content, in base64. The parts of one file come in order, and a part may come twice."""

    sha256: str
    size_bytes: int
    content: str = field(repr=False)
    offset_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentParts:
    """Parts of the blobs (file contents) of a snapshot."""

    parts: tuple[ContentPart, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SignInCode:
    """A code with which a browser signs in once, within *valid_s* seconds. ``url`` is the page, None if unknown."""

    code: str = field(repr=False)
    valid_s: float
    url: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SignIn:
    """What a browser signs in with: a one-time code, or an access token."""

    code: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedIn:
    """What the page keeps for its session: it sends ``key`` in the header ``Gpuqueue-Page`` from then on."""

    key: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadRequest:
    """What the page is about to download: a path below the API, with its query, such as ``/jobs/12/log/file``."""

    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadCode:
    """A code with which the page downloads one file, once, within *valid_s* seconds: the parameter ``download``."""

    code: str = field(repr=False)
    valid_s: float


class LogStream(str, Enum):
    """A file of a run's output."""

    #: Standard output, and standard error unless that is separate.
    LOG = "log"
    STDERR = "stderr"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgressRequest:
    """The ids of the jobs whose progress is asked for."""

    jobs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TerminalInput:
    """What a user types on the terminal of a job, and the size of the user's terminal, if it is new.

    Bytes of ``typed`` that are not UTF-8 are lone surrogates.
    """

    typed: str = field(default="", repr=False)
    window: Window | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondCommand:
    """A command that is to run in a running job. With ``window`` it has a terminal of that size.

    Without a terminal it has a standard input only with ``has_input``.
    """

    argv: tuple[str, ...] = field(repr=False)
    window: Window | None = None
    has_input: bool = False

    def __post_init__(self) -> None:
        """Check the words.

        Raises:
            BadRequest: there is none, or one has a NUL character or cannot be sent.

        """
        if not self.argv or not self.argv[0]:
            raise BadRequest("name the command that is to run")
        try:
            size_bytes = sum(len(word.encode("utf-8", "surrogateescape")) for word in self.argv)
        except UnicodeEncodeError:
            raise BadRequest("a word of the command cannot be encoded") from None
        if any("\0" in word for word in self.argv):
            raise BadRequest("a word of the command has a NUL character")
        if size_bytes > MAX_COMMAND_BYTES:
            raise BadRequest(f"a command has at most {MAX_COMMAND_BYTES} bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandInput:
    """Input for a second command in a job: frames, in base64 (``workers/shim/second_command.py``)."""

    frames: str = field(repr=False)
