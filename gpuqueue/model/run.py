"""Runs: attempts at a job on one or more devices, their endings, and the records and lists of jobs with them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.array import MemberEnds
from gpuqueue.model.device import Activity, DeviceFilter, DeviceKind, Peak, Timeline
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import signal_name
from gpuqueue.model.notification import Delivery
from gpuqueue.model.placement import Shape
from gpuqueue.text.units import format_bytes, format_duration

if TYPE_CHECKING:
    from gpuqueue.model.job_values import JobValues
    from gpuqueue.model.run_mark import RunMark

#: An exit code above this one is that and the number of a signal, by the custom of shells.
BY_SIGNAL = 128
#: What the detail of a run says that its own early signal has ended (see :mod:`workers.shim.supervisor`).
EARLY_SIGNAL = " of --signal"
#: The detail of a probe that has not ended by itself, and how its note begins.
PROBE_ENDED = "the probe ended it"
#: How the text of a note about an idle run begins.
NO_USE = "no use of its"


class EndingKind(str, Enum):
    """How a run ended."""

    #: The process exited by itself, with an exit code.
    EXITED = "exited"
    #: A signal that gpuqueue did not send killed the process.
    SIGNALLED = "signalled"
    #: The run needed more memory than was available, or than it had requested.
    OUT_OF_MEMORY = "out_of_memory"
    #: The run reached its time limit, or the early signal that it had asked for killed it shortly before.
    TIMED_OUT = "timed_out"
    #: The job was cancelled.
    CANCELLED = "cancelled"
    #: A job of a higher priority preempted the run.
    PREEMPTED = "preempted"
    #: The run did not use its devices for longer than the site allows (setting ``idle_action``).
    IDLE = "idle"
    #: The run used a device that it was not given, and the site ends such runs (setting ``on_wrong_device``).
    WRONG_DEVICE = "wrong_device"
    #: A metric of the run was no number, and its submitter wanted it to end then (``--stop-on-nan``).
    NAN = "nan"
    #: The run wrote no output and did not use its devices for as long as ``--stop-when-stalled`` says.
    STALLED = "stalled"
    #: The run could not be started: no such program, no such directory.
    REFUSED = "refused"
    #: The worker and the shim vanished, or no heartbeat renewed the lease in time. The exit code is unknown.
    LOST = "lost"

    def __str__(self) -> str:
        return self.value


class StartKind(str, Enum):
    """Why a run could start, in the terms of the Flux framework."""

    #: No job that could run on the device was ahead in the order.
    IMMEDIATE = "immediate"
    #: The job fitted where jobs ahead in the order did not.
    BACKFILL = "backfill"
    #: The devices had been reserved for the job, because it had waited too long.
    RESERVED = "reserved"

    @classmethod
    def known(cls, word: str | None) -> StartKind | None:
        """Return the kind that *word* names. None if there is no word, or if only a newer version knows it."""
        return None if word is None else next((kind for kind in cls if kind.value == word), None)

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a run ended. Create it with one of the constructors below, which make only valid combinations."""

    kind: EndingKind
    exit_code: int | None = None
    signal: int | None = None
    detail: str = ""

    #: What the API sends beside the fields.
    DERIVED = ("words",)

    @classmethod
    def from_status(cls, status: int, detail: str = "") -> Ending:
        """Return the ending of a process that ended by itself. A negative *status* is a signal."""
        if status < 0:
            return cls(kind=EndingKind.SIGNALLED, signal=-status, detail=detail)
        return cls(kind=EndingKind.EXITED, exit_code=status, detail=detail)

    @classmethod
    def stopped(cls, kind: EndingKind, status: int | None, detail: str = "") -> Ending:
        """Return the ending of a process that gpuqueue ended for the reason *kind*."""
        code = status if status is not None and status >= 0 else None
        number = -status if status is not None and status < 0 else None
        return cls(kind=kind, exit_code=code, signal=number, detail=detail)

    @classmethod
    def refused(cls, detail: str) -> Ending:
        """Return the ending of a run whose process could not be started."""
        return cls(kind=EndingKind.REFUSED, detail=detail)

    @classmethod
    def lost(cls, detail: str) -> Ending:
        """Return the ending of a run whose exit code is unknown."""
        return cls(kind=EndingKind.LOST, detail=detail)

    def __str__(self) -> str:
        """Return the ending in words, such as ``exit 1``, ``killed by SIGSEGV`` or ``timed out``."""
        return f"{self.brief}: {self.detail}" if self.detail and not self.is_of_probe else self.brief

    @property
    def words(self) -> str:
        """The ending in words, as ``str`` returns it."""
        return str(self)

    @property
    def brief(self) -> str:
        """The ending in words, without its detail."""
        if self.kind is EndingKind.EXITED:
            return f"exit {self.exit_code}"
        if self.kind is EndingKind.SIGNALLED and self.signal is not None:
            return f"killed by {signal_name(self.signal) or f'signal {self.signal}'}"
        return "ended by the probe" if self.is_of_probe else str(self.kind).replace("_", " ")

    @property
    def is_of_probe(self) -> bool:
        """Whether the run was a probe, which has succeeded when its time is over."""
        return self.kind is EndingKind.TIMED_OUT and self.detail == PROBE_ENDED

    @property
    def shell_code(self) -> int:
        """Return the exit code as in a shell: 128 + n for signal n, 124 for the time limit, 130 if cancelled."""
        stopped = {EndingKind.TIMED_OUT: 124, EndingKind.CANCELLED: 130}
        if self.kind in stopped:
            return stopped[self.kind]
        if self.kind is EndingKind.SIGNALLED and self.signal:
            return BY_SIGNAL + self.signal
        own = self.kind in {EndingKind.EXITED, EndingKind.OUT_OF_MEMORY}
        return self.exit_code if own and self.exit_code is not None else 1


def state_after(ending: Ending, *, is_probe: bool = False) -> JobState:
    """Return the final state of a job whose last run had this *ending*. A probe has succeeded once its time is over."""
    if ending.kind is EndingKind.EXITED and ending.exit_code == 0:
        return JobState.SUCCEEDED
    if ending.is_of_probe or (ending.kind is EndingKind.TIMED_OUT and is_probe):
        return JobState.SUCCEEDED
    if ending.kind is EndingKind.CANCELLED:
        return JobState.CANCELLED
    if ending.kind is EndingKind.LOST:
        return JobState.LOST
    return JobState.FAILED


class NoteKind(str, Enum):
    """What a note on a run says. A new kind needs an entry here, and its sentence in :data:`_SENTENCES`."""

    #: Processes of the run were still running when its script had ended by itself, and were ended.
    ENDED_PROCESSES = "ended_processes"
    #: The run exited with 0, and a program in it had failed.
    HIDDEN_FAILURE = "hidden_failure"
    #: The run failed, and its log says that a port was in use already.
    PORT_TAKEN = "port_taken"
    #: The run failed, and its log says that a command for loading an environment is not there.
    NOT_ACTIVATED = "not_activated"
    #: The run failed, and its log says that it read the UUID of a device as a number.
    UUID_AS_NUMBER = "uuid_as_number"
    #: The run has left files in /dev/shm that no process uses.
    LEFT_SHARED_MEMORY = "left_shared_memory"
    #: They were removed, as the site wants it (setting ``remove_shared_memory``).
    REMOVED_SHARED_MEMORY = "removed_shared_memory"
    #: Its memory was not measured for a time, so its peak is a lower bound.
    PEAK_IN_PART = "peak_in_part"
    #: It reported metrics faster than they are read, so some are missing.
    METRICS_IN_PART = "metrics_in_part"
    #: An engine ran it, on its own machines.
    AT_ENGINE = "at_engine"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class RunNote:
    """What a person should know about a run that its ending does not say. A note changes no state.

    ``kind`` is a :class:`NoteKind`, as text: that of a newer version must not make the end of a run unreadable.
    ``items`` are what it names, in the words of the job: command lines, files, or an error. ``count`` is how many there
    are, which may be more, and for ``peak_in_part`` the seconds without a sample. ``size_bytes`` is their size, and
    ``owner`` the account that they belong to, if they are files.
    """

    kind: str
    items: tuple[str, ...] = ()
    count: int = 1
    size_bytes: int | None = None
    owner: str = ""

    #: What the API sends beside the fields.
    DERIVED = ("words",)

    @property
    def words(self) -> str:
        """The note as a sentence for all who read it; its kind if only a newer version knows that."""
        sentence = _SENTENCES.get(self.kind)
        return self.kind.replace("_", " ") if sentence is None else sentence(self)

    def without_items(self) -> RunNote:
        """Return the note for a reader who may not see the arguments or the log of the job."""
        return replace(self, items=())


def _named(note: RunNote) -> str:
    """Return the items of *note*, to follow a statement; empty if there are none."""
    more = note.count - len(note.items)
    return f": {', '.join(note.items)}{f' and {more} more' if more > 0 else ''}" if note.items else ""


def _of_ended_processes(note: RunNote) -> str:
    if note.count == 1:
        return (
            f"ended 1 process that was still running{_named(note)}; run it in the foreground, or put `wait` at the "
            "end of the script"
        )
    return (
        f"ended {note.count} processes that were still running{_named(note)}; run them in the foreground, or put "
        "`wait` at the end of the script"
    )


def _of_hidden_failure(note: RunNote) -> str:
    return (
        f"exit 0, but a program in it failed{_named(note)}; `set -eo pipefail` at the start of a bash script makes "
        "that a failure of the job"
    )


def _of_port_taken(_note: RunNote) -> str:
    return (
        "another process had the port on which it wants to listen; take $MASTER_PORT, which is free for each run "
        "(docs/howto/launchers.md)"
    )


def _of_not_activated(_note: RunNote) -> str:
    return (
        "a line with `module` or `conda activate` found no such command, so its environment was not loaded; activate "
        "it in your shell and submit without that line: the job has your environment (docs/howto/conda-and-uv.md)"
    )


def _of_uuid_as_number(_note: RunNote) -> str:
    return (
        "it reads numbers from CUDA_VISIBLE_DEVICES, which has the UUIDs of its devices; submit it with --visible index"
    )


def _of_left_shared_memory(note: RunNote) -> str:
    more = f" ({note.count - len(note.items)} more files are there)" if note.count > len(note.items) > 0 else ""
    paths = " ".join(f"/dev/shm/{name}" for name in note.items)  # noqa: S108 - where shared memory is
    return f"left {_shared(note)}, which no process uses{f'; remove it with `rm {paths}`{more}' if paths else ''}"


def _of_removed_shared_memory(note: RunNote) -> str:
    return f"removed {_shared(note)}, which the run had left{_named(note)}"


def _of_peak_in_part(note: RunNote) -> str:
    return f"its memory was not measured for {format_duration(note.count)}: its peak may be higher"


def _of_metrics_in_part(note: RunNote) -> str:
    return (
        f"its metrics are incomplete: {format_bytes(note.size_bytes or 0)} of what it reported came too fast to be read"
    )


def _shared(note: RunNote) -> str:
    return f"{format_bytes(note.size_bytes or 0)} of {note.owner} in /dev/shm"


def _of_at_engine(note: RunNote) -> str:
    job, nodes, *times = (*note.items, "", "")[: max(2, len(note.items))]
    when = f", from {times[0]} to {times[1]}" if len(times) > 1 else ""
    return f"{note.owner} ran it as {job or 'a job'}" + (f" on {nodes}" if nodes else "") + when


_SENTENCES: Mapping[str, Callable[[RunNote], str]] = MappingProxyType(
    {
        NoteKind.ENDED_PROCESSES.value: _of_ended_processes,
        NoteKind.HIDDEN_FAILURE.value: _of_hidden_failure,
        NoteKind.PORT_TAKEN.value: _of_port_taken,
        NoteKind.NOT_ACTIVATED.value: _of_not_activated,
        NoteKind.UUID_AS_NUMBER.value: _of_uuid_as_number,
        NoteKind.LEFT_SHARED_MEMORY.value: _of_left_shared_memory,
        NoteKind.REMOVED_SHARED_MEMORY.value: _of_removed_shared_memory,
        NoteKind.PEAK_IN_PART.value: _of_peak_in_part,
        NoteKind.METRICS_IN_PART.value: _of_metrics_in_part,
        NoteKind.AT_ENGINE.value: _of_at_engine,
    }
)
#: The kinds that say that a run which exited with 0 has not done all its work.
_INCOMPLETE = frozenset({NoteKind.ENDED_PROCESSES.value, NoteKind.HIDDEN_FAILURE.value})


UNKNOWN_PEAK = Peak.unknown()
UNKNOWN_ACTIVITY = Activity()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDevice:
    """The use of one device by one run: the allocated memory ``lease_bytes``, and the measured figures.

    ``timeline`` is None if there is none. Lists of runs omit it.
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
    """The worker's report on an ended run."""

    ending: Ending
    duration_s: float | None
    devices: tuple[RunDevice, ...]
    peak_at_once_bytes: int | None = None
    notes: tuple[RunNote, ...] = ()
    values: JobValues | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One attempt at a job. Every write about the run must carry its ``token``.

    The shim measures ``duration_s`` on its own monotonic clock. The times are on the store's clock.
    ``peak_at_once_bytes`` is the most memory that the run used on all its devices at one moment, which can be less than
    the sum of their peaks. ``start_kind`` is None for runs of versions that did not record it; these have no ``notes``.
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
    notes: tuple[RunNote, ...] = ()
    #: What looked wrong about the run while it went on, also what was over before its end.
    marks: tuple[RunMark, ...] = ()
    #: What the worker set for its processes: ``threads`` of a numerical library, and ``open_files``, each only if it is
    #: known. Lists of runs omit it.
    limits: Mapping[str, int] = field(default_factory=dict)
    #: What the job reported about the run, None if it reported nothing, or the run has not ended. Lists of runs omit
    #: the curves.
    values: JobValues | None = None

    DERIVED = ("peak_bytes",)

    @property
    def peak_bytes(self) -> int | None:
        """The sum of the peaks of all devices, or None if any of them is unknown."""
        peaks = [device.peak.bytes for device in self.devices]
        if not peaks or any(peak is None for peak in peaks):
            return None
        return sum(peak for peak in peaks if peak is not None)

    @property
    def is_complete(self) -> bool:
        """Whether the program did all its work, as far as is known: it exited with 0, and no note says otherwise."""
        exited_well = self.ending is not None and self.ending.kind is EndingKind.EXITED and self.ending.exit_code == 0
        return exited_well and not self.note_kinds & _INCOMPLETE

    @property
    def gap(self) -> RunNote | None:
        """The note that its peak is a lower bound, because its memory was not measured for a time; None without it."""
        return next((note for note in self.notes if note.kind == NoteKind.PEAK_IN_PART), None)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last value of each metric by its name."""
        return {} if self.values is None else self.values.last()

    @property
    def params(self) -> Mapping[str, str]:
        """The parameters that the job reported, by name."""
        return {} if self.values is None else self.values.params

    @property
    def note_kinds(self) -> frozenset[str]:
        """The kinds of its notes."""
        return frozenset(note.kind for note in self.notes)

    def without_token(self) -> Run:
        """Return the run as it is sent and printed: without its token, which proves a claim."""
        return replace(self, token="")


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Information for the owner of a run or of a waiting job, such as that a run uses too much memory.

    ``attempt`` is 0 if the job had no run yet.
    """

    at: datetime
    attempt: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MemAdvice:
    """The memory that ``--mem auto`` asks for now for a job like this one, on each device.

    ``runs`` is the number of runs behind it, and ``reason`` says in words what they showed.
    """

    mem_bytes: int
    runs: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A job with all its runs: one entry of the history. Lists omit ``notes`` and ``reported``.

    ``advice`` is filled in for a reader of this one job if its runs, or other runs of its program, show a need.
    """

    job: Job
    runs: tuple[Run, ...] = ()
    notes: tuple[Note, ...] = ()
    reported: tuple[Delivery, ...] = ()
    advice: MemAdvice | None = None

    #: What the API sends beside the fields.
    DERIVED = ("outcome",)

    @property
    def outcome(self) -> str:
        """How the last run ended, without its detail, or why the queue ended the job; empty if neither is known."""
        run = self.last_run
        return run.ending.brief if run is not None and run.ending is not None else self.job.because or ""

    @property
    def last_run(self) -> Run | None:
        """Return the newest run, or None for a job that never ran."""
        return self.runs[-1] if self.runs else None

    @property
    def last_ended(self) -> Run | None:
        """Return the newest run that has ended, or None."""
        return next((run for run in reversed(self.runs) if run.ending is not None), None)

    @property
    def shows_memory(self) -> bool:
        """Return whether the newest run that has ended was measured, or lacked memory."""
        run = self.last_ended
        if run is None or run.ending is None:
            return False
        return run.peak_bytes is not None or run.ending.kind is EndingKind.OUT_OF_MEMORY

    def without_secrets(self) -> Record:
        """Return the record as it is printed: its job without secrets, and its runs without tokens."""
        runs = tuple(run.without_token() for run in self.runs)
        return replace(self, job=self.job.without_secrets(), runs=runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Survivor:
    """A job to restore: into the store from the history, or into the history from the store.

    ``payload`` is the text of its spec, verbatim.
    """

    record: Record
    payload: str = field(repr=False)
    #: Whether the job needs a GPU although it asks for no device kind, because the queue knew a GPU at submit.
    meant_for_gpu: bool = False
    #: Its dependencies that have ended, and whether each succeeded; how the members of a followed array have ended.
    ends: Mapping[int, bool | MemberEnds] = field(default_factory=dict)
    #: Until when the host leaves the run to its shim, on the store's clock. None if a worker is responsible for it.
    parked_until: datetime | None = None

    @property
    def shape(self) -> Shape:
        """Return the shape of the job in the store."""
        shape = self.record.job.spec.shape
        return replace(shape, device=DeviceFilter.GPU) if self.meant_for_gpu and shape.device is None else shape

    @property
    def is_array(self) -> bool:
        """Return whether the scripts treat the job as an array, even if its spec cannot be decoded."""
        return self.record.job.member is None and '"array":{' in self.payload

    @property
    def run(self) -> Run | None:
        """Return the active run, or None."""
        job, run = self.record.job, self.record.last_run
        on = job.state.is_active and run is not None and run.attempt == job.attempt and run.ended_at is None
        return run if on else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Jobs, and data on their runs by job id.

    ``at`` is the time of the page on the store's clock. ``held_bytes`` is the memory that the last sample of each run
    showed, summed over its devices. ``logs`` are the paths of the logs on the host of each run. ``devices`` are the
    devices of each run.
    """

    at: datetime
    jobs: tuple[Job, ...]
    held_bytes: Mapping[int, int] = field(default_factory=dict)
    logs: Mapping[int, str] = field(default_factory=dict)
    devices: Mapping[int, tuple[RunDevice, ...]] = field(default_factory=dict)
    #: The last id of this page, for the next one. None if this is the last page.
    after: int | None = None

    def without_secrets(self) -> Listing:
        """Return the listing as it is printed: its jobs without secrets."""
        return replace(self, jobs=tuple(job.without_secrets() for job in self.jobs))


#: Returns the value of a record, None if it is unknown.
Value = Callable[[Record], Any]


def _of_run(value: Callable[[Run], Any]) -> Value:
    """Return a function that applies *value* to the last run of a record; None for a job that never ran."""
    return lambda record: None if record.last_run is None else value(record.last_run)


def _wait_s(record: Record) -> float | None:
    """Return the wait before the first run in seconds by the store's clock, or None without a first run."""
    first = next((run for run in record.runs if run.attempt == 1), None)
    return None if first is None else max(0.0, (first.claimed_at - record.job.submitted_at).total_seconds())


def _used(record: Record) -> float | None:
    """Return the peak of the last run as a share of its allocated memory, or None if the peak is unknown."""
    run = record.last_run
    if run is None or run.peak_bytes is None:
        return None
    return run.peak_bytes / sum(device.lease_bytes for device in run.devices)


def _sources(run: Run | None) -> str:
    return " ".join(sorted({device.peak.source.value for device in run.devices})) if run else ""


def _utilisation(run: Run) -> float | None:
    """Return the largest own utilisation of the run on a device, None if none is known."""
    known = (device.activity.own_utilisation_mean for device in run.devices)
    return max((each for each in known if each is not None), default=None)


def _models(run: Run) -> str:
    """Return the model names of the devices, each once."""
    return ", ".join(dict.fromkeys(device.name for device in run.devices if device.name))


#: Column name -> value, in the order of ``gpuqueue history --csv``; docs/reference/json.md explains them. Add new ones
#: only at the end.
VALUES: Mapping[str, Value] = MappingProxyType(
    {
        "id": lambda record: record.job.id,
        "name": lambda record: record.job.spec.name,
        "user": lambda record: record.job.spec.account.name,
        "state": lambda record: record.job.state.value,
        "ending": _of_run(lambda run: run.ending.kind.value if run.ending else None),
        "exit_code": _of_run(lambda run: run.ending.exit_code if run.ending else None),
        "signal": _of_run(lambda run: run.ending.signal if run.ending else None),
        "host": lambda record: record.job.host,
        "devices": lambda record: " ".join(each.uuid for each in record.last_run.devices) if record.last_run else "",
        "submitted_at": lambda record: record.job.submitted_at,
        "started_at": lambda record: record.job.started_at,
        "ended_at": lambda record: record.job.ended_at,
        "duration_s": _of_run(lambda run: run.duration_s),
        "mem_bytes": lambda record: record.job.spec.mem_bytes,
        "gpus": lambda record: record.job.spec.gpus,
        "peak_bytes": _of_run(lambda run: run.peak_bytes),
        "peak_source": lambda record: _sources(record.last_run),
        "attempt": lambda record: record.job.attempt,
        "command": lambda record: record.job.spec.command,
        "wait_s": _wait_s,
        "used": _used,
        "model": _of_run(lambda run: _models(run) or None),
        "cwd": lambda record: record.job.spec.cwd,
        "because": lambda record: record.job.because,
        "array_id": lambda record: record.job.member.array_id if record.job.member else None,
        "array_index": lambda record: record.job.member.index if record.job.member else None,
        "time_limit_s": lambda record: record.job.spec.time_limit_s,
        "priority": lambda record: str(record.job.spec.priority),
        "tags": lambda record: " ".join(record.job.tags),
        "note": lambda record: record.job.note,
        "own_utilisation": _of_run(_utilisation),
        "marks": _of_run(lambda run: " ".join(each.kind for each in run.marks)),
    }
)
