"""The request of a job, with its warning signal, git checkout and priority, and the account that submits it. Pure."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later, pattern
from gpuqueue.model.array import Array, Member
from gpuqueue.model.dependencies import NO_WAITS, Waits
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.notification import Notification, check_notifications
from gpuqueue.model.placement import ANYWHERE, Placement, Shape, Visible
from gpuqueue.model.retries import NO_RETRIES, Retries
from gpuqueue.model.terminal_size import Window
from gpuqueue.text.sanitize import brief, name_of
from gpuqueue.text.units import MAX_BYTES, MAX_S, format_duration, parse_duration

if TYPE_CHECKING:
    from gpuqueue.model import code_snapshot, container, file_patterns, host_limits, output_file, whole_jobs
    from gpuqueue.model import probe as probes
else:
    code_snapshot = later("gpuqueue.model.code_snapshot")
    container = later("gpuqueue.model.container")
    file_patterns = later("gpuqueue.model.file_patterns")
    host_limits = later("gpuqueue.model.host_limits")
    output_file = later("gpuqueue.model.output_file")
    probes = later("gpuqueue.model.probe")
    whole_jobs = later("gpuqueue.model.whole_jobs")

#: Default time between the signal and the limit, in seconds, as in Slurm.
SIGNAL_BEFORE_S = 60.0
#: Signals that cannot be caught, so they cannot warn a job.
_UNCATCHABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})
_SIGNAL_TEXT = pattern(r"(?:B:)?(?:SIG)?(?P<which>[A-Z0-9]{1,12})(?:@(?P<before>.{1,40}))?", re.ASCII | re.IGNORECASE)
_SECONDS = pattern(r"\d{1,9}", re.ASCII)
#: Longest branch name, in characters. ``system/git_checkout.py`` cuts longer ones.
MAX_BRANCH = 255
#: A full commit hash, SHA-1 or SHA-256.
COMMIT = pattern(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
#: Text of the source of a memory that the submitter named (see ``mem_source.py``). It is the usual one.
ASKED = "asked"
#: The word of ``--mem`` that asks for what earlier runs needed.
AUTO = "auto"
#: The directory of a job that was submitted in a browser, which has none. The job runs in a copy of its code.
NOWHERE = "/"
#: Longest job name, in characters.
MAX_NAME = 128
#: Most tags of one job. ``gpuqueue/queue/lua/acts/set_tags.lua`` has the same limit.
MAX_TAGS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlySignal:
    """A signal that a job gets before its time limit, so that it can save its work: its number, and how long before.

    The syntax is that of Slurm's ``--signal``: ``USR1@120`` is SIGUSR1, 120 seconds before the limit. Only the job's
    first process gets the signal, because processes that a framework forks (such as data loaders) inherit no handler,
    or the wrong one. Slurm's prefix ``B:`` asks for the same, so it is accepted and changes nothing.
    """

    number: int
    before_s: float = SIGNAL_BEFORE_S

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: the number is no signal, the signal cannot be caught, or the time is out of range.

        """
        for what, value, kinds in (("signal", self.number, (int,)), ("time", self.before_s, (int, float))):
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise BadRequest(f"the {what} of a warning signal must be a number, not {brief(value)}")
        if self.number not in signal.valid_signals():
            raise BadRequest(f"{brief(self.number)} is no signal number")
        if self.number in _UNCATCHABLE:
            raise BadRequest(f"{self.name} cannot be caught, so it cannot warn: choose another, such as USR1")
        if not 0 < self.before_s <= MAX_S:
            raise BadRequest("a warning signal must come before the time limit, by at most ten years")

    @classmethod
    def parse(cls, text: str) -> EarlySignal:
        """Return the signal that *text* describes: ``USR1@120``, ``SIGINT@2m``, ``10@30`` or ``TERM``.

        A bare number after the ``@`` is in seconds, as in Slurm.

        Raises:
            BadRequest: *text* is malformed.

        """
        match = _SIGNAL_TEXT.fullmatch(text.strip())
        if match is None:
            raise BadRequest(f"{brief(text)} is no warning signal: write it like USR1@120 or SIGINT@2m")
        before = match["before"]
        if before is None:
            return cls(number=_signal_number(match["which"]))
        before_s = float(before) if _SECONDS.fullmatch(before) else parse_duration(before)
        return cls(number=_signal_number(match["which"]), before_s=before_s)

    def check(self, time_limit_s: float | None) -> None:
        """Check that the signal can be sent within *time_limit_s*.

        Raises:
            BadRequest: there is no time limit, or it is too short for the signal.

        """
        if time_limit_s is None:
            raise BadRequest(f"{self.name} is to come before the time limit, and there is none: give one (--time)")
        if self.before_s >= time_limit_s:
            raise BadRequest(
                f"{self.name} is to come {format_duration(self.before_s)} before a time limit of "
                f"{format_duration(time_limit_s)}: give a shorter time after the @"
            )

    @property
    def name(self) -> str:
        """Return the name of the signal, or its number if it has none."""
        return signal_name(self.number) or str(self.number)

    def __str__(self) -> str:
        """Return the text that :meth:`parse` accepts, such as ``USR1@120``."""
        return f"{self.name.removeprefix('SIG')}@{self.before_s:g}"


def _signal_number(word: str) -> int:
    if word.isdigit():
        return int(word) if len(word) < 4 else 0  # noqa: PLR2004 - no signal has four digits
    try:
        return signal.Signals[f"SIG{word.upper()}"].value
    except KeyError:
        raise BadRequest(f"{brief(word)} is no signal name: kill -l lists them") from None


def signal_name(number: int) -> str | None:
    """Return the name of a signal, None if it has none, as most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """The checked-out commit. ``branch`` is None without a branch, ``dirty`` is None if git did not answer in time."""

    commit: str
    branch: str | None = None
    dirty: bool | None = None

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: the commit, the branch or ``dirty`` is invalid.

        """
        if not COMMIT.fullmatch(str(self.commit)):
            raise BadRequest(f"{brief(self.commit)} is no commit")
        if self.branch is not None and not 0 < len(str(self.branch)) <= MAX_BRANCH:
            raise BadRequest(f"{brief(self.branch)} is no branch")
        if self.dirty not in {None, True, False}:
            raise BadRequest(f"dirty must be true or false, not {brief(self.dirty)}")


class Priority(IntEnum):
    """Priority of a job. Jobs of a higher priority go first, regardless of their user."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    URGENT = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """The account that submits a job, read once at submit."""

    name: str
    uid: int
    host: str


#: Types of flags and of optional texts. Other fields refuse a bool, although Python's bool is an int.
_FLAG: tuple[type, ...] = (bool,)
_TEXT_OR_NONE: tuple[type, ...] = (str, type(None))
#: The fields of a spec: name in messages, attribute path, allowed types, name of the types in messages.
_FIELDS: tuple[tuple[str, str, tuple[type, ...], str], ...] = (
    ("mem", "mem_bytes", (int,), "a whole number"),
    ("gpus", "gpus", (int,), "a whole number"),
    ("nodes", "nodes", (int, type(None)), "a whole number"),
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
    ("output", "output", _TEXT_OR_NONE, "text"),
    ("error", "error", _TEXT_OR_NONE, "text"),
    ("warm", "warm", _FLAG, "true or false"),
    ("script", "script", _TEXT_OR_NONE, "text"),
    ("interpreter", "interpreter", _TEXT_OR_NONE, "text"),
    ("environment", "environment", _TEXT_OR_NONE, "text"),
    ("snapshot", "snapshot", _TEXT_OR_NONE, "text"),
    ("keep", "keep", (tuple,), "a tuple of patterns"),
    ("mem_source", "mem_source", _TEXT_OR_NONE, "text"),
    ("probe", "probe", _TEXT_OR_NONE, "text"),
    ("cpus", "cpus", (int, float, type(None)), "a number"),
    ("cpu_mem", "cpu_mem_bytes", (int, type(None)), "a whole number"),
    ("expected_utilisation", "expected_utilisation", (int, float, type(None)), "a number"),
    ("expected_duration_s", "expected_duration_s", (int, float, type(None)), "a number"),
    ("extended_s", "extended_s", (int, float), "a number of seconds"),
    ("ticket", "ticket", _TEXT_OR_NONE, "text"),
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
    ("visible", "visible", (Visible, type(None)), f"one of {', '.join(Visible)}"),
    ("stop_on_nan", "stop_on_nan", _FLAG, "true or false"),
    ("stop_when_stalled", "stop_when_stalled_s", (int, float, type(None)), "a number of seconds"),
    ("container", "container", _TEXT_OR_NONE, "text"),
    ("bind", "binds", (tuple,), "a tuple of texts"),
    ("given_in", "given_in", (Mapping,), "a mapping of options to files"),
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
class JobTerms:
    """What a submitter decides about a job; the rest of its request is in :class:`JobSpec`.

    - ``device`` is the device kind. None means a GPU if the queue knows one (:func:`gpuqueue.model.device.suits`).
      ``placement`` restricts the devices further. A job that is handed to an engine has the engine there; its ``gpus``
      are those on all its ``nodes`` together. ``nodes`` is None for other jobs, and for one node.
    - ``env`` is the submitter's environment. It may hold secrets, so ``repr`` omits it. ``umask`` is the submitter's.
    - ``script`` and ``interpreter`` are set if the job is a Python script. ``snapshot`` is the text of a
      :class:`~gpuqueue.model.code_snapshot.CodeSnapshot` if the code travels with the job: the job then runs in a
      directory of its own, and ``cwd`` is where it was submitted. ``keep`` are patterns of files there to keep longer
      than the directory. ``git`` is the checkout of ``cwd`` at submit.
    - ``environment`` is the name of a Python environment, whose program each host knows by its setting.
    - ``container`` is the name of the image that the job runs in, None for no container. ``binds`` are files of the
      host in the container beside its directories, as ``SOURCE:TARGET`` (:mod:`gpuqueue.model.container`).
    - With ``warm``, the submitter states that a warm interpreter may become the first process.
    - ``pty`` is the size of the job's terminal, None for output to a file. ``separate_stderr`` writes standard error to
      a file of its own.
    - ``waits`` is what the job waits for besides a device. ``retries`` is how often it runs again after a failure.
      ``signal`` is sent to the first process before the time limit.
    - ``mem_source`` is the text of a :class:`~gpuqueue.model.mem_source.MemSource`, None if nobody knows where the
      memory of the job came from.
    - ``expected_utilisation`` is the share of time, 0 to 1, in which it probably uses each device. None: unknown.
    - ``expected_duration_s`` is how long nine of ten such runs took, in seconds. None: unknown.
    - ``probe`` is the text of a :class:`~gpuqueue.model.probe.Probe` if the job runs only to find out its memory.
    - ``cpus`` and ``cpu_mem_bytes`` are the most processors and host memory that the job may use.
    - ``output`` and ``error`` name the links to the log and to standard error that each run makes in ``cwd``, with the
      codes of :mod:`gpuqueue.model.output_file`.
    - ``visible`` is how the job finds its GPUs. None means as the setting ``visible`` of their host says.
    - With ``stop_on_nan`` a run ends once a metric that it reports is no number. It ends once it has written no output
      and has not used its devices for ``stop_when_stalled_s`` seconds, None: never.
    - ``given_in`` is the file and line of each option that was not typed, such as ``mem``: ``train.sh line 2``.
    - ``notifications`` are the notifications to send at the final end of the job.
    - ``retry_of`` is the id of the job that a user retries with this one. ``tags`` are the initial tags.
    """

    argv: tuple[str, ...]
    cwd: str
    gpus: int = 1
    nodes: int | None = None
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
    environment: str | None = None
    snapshot: str | None = None
    keep: tuple[str, ...] = ()
    waits: Waits = NO_WAITS
    retries: Retries = NO_RETRIES
    array: Array | None = None
    signal: EarlySignal | None = None
    notifications: tuple[Notification, ...] = ()
    retry_of: int | None = None
    tags: tuple[str, ...] = ()
    git: Checkout | None = None
    separate_stderr: bool = False
    mem_source: str | None = None
    probe: str | None = None
    cpus: float | None = None
    cpu_mem_bytes: int | None = None
    expected_utilisation: float | None = None
    expected_duration_s: float | None = None
    visible: Visible | None = None
    output: str | None = None
    error: str | None = None
    stop_on_nan: bool = False
    stop_when_stalled_s: float | None = None
    container: str | None = None
    binds: tuple[str, ...] = ()
    given_in: Mapping[str, str] = field(default_factory=dict)
    #: The last of these fields: submit_limits.lua needs it before the account.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec(JobTerms):
    """The frozen request of a job: its terms, and what only the client or the service can say.

    - ``account`` is the submitter.
    - ``mem_bytes`` is the memory that the job needs on *each* of its ``gpus`` devices. With ``cap``, the worker limits
      the job's frameworks to it.
    - ``extended_s`` is how much of its time limit was added while it ran.
    - ``ticket`` is the signature of a service that signs jobs (:mod:`gpuqueue.model.ticket`). It holds the arguments.
    """

    account: Account
    mem_bytes: int
    name: str
    extended_s: float = 0.0
    ticket: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: a field is of the wrong type, is out of range or holds a NUL character.

        """
        self._check_types()
        faults = [*_faults_of_program(self), *_faults_of_devices(self), *_faults_of_course(self), *_faults_of_end(self)]
        faults += _faults_of_container(self)
        if faults:
            raise BadRequest.of_faults(faults)

    def _check_types(self) -> None:
        """Refuse values of a wrong type, which a program can pass and the command line cannot."""
        if not isinstance(self.account, Account):
            raise BadRequest(f"the account must be an Account, not {brief(self.account)}")
        values = _typed(self)
        if not _are_right(tuple(map(type, values))):
            for (what, _, wanted, words), value in zip(_FIELDS, values, strict=True):
                if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not _FLAG):
                    raise BadRequest(f"{what} must be {words}, not {brief(value)}")
        if not 0 <= self.umask <= 0o777:  # noqa: PLR2004 - three digits of three bits
            raise BadRequest(f"{brief(self.umask)} is no umask: it has three octal digits")
        texts = (*self.argv, *self.env, *self.env.values())
        if {*map(type, texts)} != {str} and not all(isinstance(text, str) for text in texts):
            raise BadRequest("every argument, and every variable of the environment, must be text")

    @property
    def shape(self) -> Shape:
        """Return the shape of this request."""
        return Shape.of(
            *(self.mem_bytes, self.time_limit_s, self.gpus, self.pool, self.device, self.placement),
            expected_s=self.expected_duration_s,
            requeue=self.requeue,
        )

    @property
    def is_whole(self) -> bool:
        """Return whether the job is handed to an engine as a whole."""
        return self.device is not None and self.device.is_engine

    @property
    def device_count(self) -> int:
        """Return on how many devices of this site the job runs. An engine counts as one, whatever it gives the job."""
        return 1 if self.is_whole else self.gpus

    @property
    def command(self) -> str:
        """Return the command line, quoted for a shell."""
        return shlex.join(self.argv)

    @property
    def is_from_page(self) -> bool:
        """Return whether the web page submitted the job: its code travelled, and it has no directory."""
        return self.cwd == NOWHERE and self.snapshot is not None

    def of_member(self, member: Member) -> JobSpec:
        """Return the spec of *member*, with its own values in the arguments and the environment.

        The member waits only for a device and has no notifications: those belong to the array.
        """
        if self.array is None:
            return self
        array, index = self.array, member.index
        argv = tuple(array.fill(word, index) for word in self.argv)
        env = {**self.env, **array.environment(index, member.array_id)}
        return replace(self, argv=argv, env=env, array=None, waits=NO_WAITS, notifications=())


def tags_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return *words* as the tags of one job, without duplicates and in their order.

    Raises:
        BadRequest: a word is no valid tag, or there are too many.

    """
    found = tuple(dict.fromkeys(words))
    for word in found:
        name_of("tag", word)
    if len(found) > MAX_TAGS:
        raise BadRequest(f"a job has at most {MAX_TAGS} tags, not {len(found)}")
    return found


#: What is wrong with fields of a spec: each field, and the words.
_Faults = list[tuple[str, str]]


def _judge(found: _Faults, name: str, check: Callable[..., object], *values: Any) -> None:
    """Add to *found* what *check* says of the *values* of the field *name*."""
    try:
        check(*values)
    except BadRequest as error:
        found.append((name, str(error)))


def _faults_of_program(spec: JobSpec) -> _Faults:
    """Return what is wrong with the command, its texts and its code."""
    found: _Faults = []
    texts = (*spec.argv, spec.cwd, spec.name, spec.account.host, *spec.env, *spec.env.values())
    if not spec.argv or not spec.argv[0]:
        found.append(("argv", "there is no command to run: name a script, or put a command after --"))
    elif not spec.name:
        found.append(("name", "the name is empty: give a name, or none"))
    if len(spec.name) > MAX_NAME:
        found.append(("name", f"a job's name must have 1 to {MAX_NAME} characters"))
    if not spec.cwd.startswith("/"):
        found.append(("cwd", f"the working directory {brief(spec.cwd)} is not absolute"))
    if "\0" in "".join(texts):
        words = "an argument, the environment or a path holds a NUL character, which no process can be given"
        found.append(("argv", words))
    if spec.snapshot is not None:
        _judge(found, "snapshot", code_snapshot.CodeSnapshot.parse, spec.snapshot)
    if spec.keep:
        _judge(found, "keep", _check_keep, spec)
    _judge(found, "account", name_of, "usable user name", spec.account.name)
    if spec.environment is not None:
        _judge(found, "environment", name_of, "usable environment name", spec.environment)
    if spec.tags:
        _judge(found, "tags", tags_of, spec.tags)
    return found


def _faults_of_container(spec: JobSpec) -> _Faults:
    """Return what is wrong with the container of a job."""
    found: _Faults = []
    if spec.container is None:
        if spec.binds:
            found.append(("binds", "--bind is for containers: name an image with --container"))
        return found
    _judge(found, "container", container.check, spec.container, spec.binds)
    if spec.environment is not None:
        found.append(("environment", "the Python of a container is in its image: leave out --environment"))
    if spec.warm:
        found.append(("warm", "a warm interpreter is in no container: leave out --warm"))
    if spec.cwd == NOWHERE and spec.snapshot is None:
        found.append(("cwd", "a container cannot have / of the host: name a directory with --cwd"))
    return found


def _check_keep(spec: JobSpec) -> None:
    file_patterns.of_request(spec.keep, with_code=spec.snapshot is not None)


def _faults_of_devices(spec: JobSpec) -> _Faults:
    """Return what is wrong with the memory, the devices and the pool."""
    found: _Faults = []
    if not 0 < spec.mem_bytes <= MAX_BYTES:
        asked = brief(spec.mem_bytes)
        words = f"a job cannot ask for {asked} bytes of memory: give a size above 0, at most 1024T"
        found.append(("mem_bytes", words))
    if spec.expected_utilisation is not None and not 0 <= spec.expected_utilisation <= 1:
        words = f"expected_utilisation is a share from 0 to 1, not {brief(spec.expected_utilisation)}"
        found.append(("expected_utilisation", words))
    if spec.nodes is not None or (spec.device is not None and spec.device.is_engine):
        found += whole_jobs.faults_of(spec)
    elif not 1 <= spec.gpus <= 64:  # noqa: PLR2004 - more than any host has
        found.append(("gpus", f"a job cannot ask for {brief(spec.gpus)} devices: give a number from 1 to 64"))
    elif spec.device is DeviceFilter.CPU and spec.gpus > 1:
        found.append(("gpus", f"a host serves its CPU as one device, not as {spec.gpus}: ask for one device"))
    elif spec.placement.devices and len(spec.placement.devices) < spec.gpus:
        named = len(spec.placement.devices)
        found.append(("gpus", f"{spec.gpus} devices asked for, and {named} named: name as many, or more"))
    if spec.pool:
        _judge(found, "pool", name_of, "usable pool name", spec.pool)
    if spec.cpus is not None:
        _judge(found, "cpus", host_limits.check, spec.cpus, None)
    if spec.cpu_mem_bytes is not None:
        _judge(found, "cpu_mem_bytes", host_limits.check, None, spec.cpu_mem_bytes)
    return found


def _faults_of_course(spec: JobSpec) -> _Faults:
    """Return what is wrong with what the job waits for and with its time."""
    found: _Faults = []
    if spec.retries.times and not spec.requeue:
        words = "a job that must not run twice cannot be retried: leave out --retries or --no-requeue"
        found.append(("retries", words))
    if spec.time_limit_s is not None and not 0 < spec.time_limit_s <= MAX_S:
        found.append(("time_limit_s", "a time limit must be above 0 and at most ten years"))
    if spec.expected_duration_s is not None and not 0 <= spec.expected_duration_s <= MAX_S:
        found.append(("expected_duration_s", "expected_duration_s must be from 0 to ten years"))
    if spec.stop_when_stalled_s is not None and not 0 < spec.stop_when_stalled_s <= MAX_S:
        found.append(("stop_when_stalled_s", "stop_when_stalled must be above 0 and at most ten years"))
    if spec.signal is not None:
        _judge(found, "signal", spec.signal.check, spec.time_limit_s)
    if spec.probe is not None:
        _judge(found, "probe", _check_probe, spec)
    if spec.array is None and spec.waits.followed is not None:
        other = spec.waits.followed
        words = f"--after {other}:corr is for arrays: give the --array of job {other}, or --after {other}"
        found.append(("waits", words))
    return found


def _check_probe(spec: JobSpec) -> None:
    if spec.probe is not None:
        probes.Probe.parse(spec.probe).check(spec.time_limit_s, is_array=spec.array is not None)


def _faults_of_end(spec: JobSpec) -> _Faults:
    """Return what is wrong with the output, the notifications and the first job."""
    found: _Faults = []
    if spec.pty is not None and spec.separate_stderr:
        found.append(("pty", "a terminal has one output: choose --pty or --separate-stderr"))
    for name, link in (("output", spec.output), ("error", spec.error)):
        if link is not None:
            _judge(found, name, output_file.check, link)
            if spec.snapshot is not None:
                found.append((name, output_file.NOT_HERE))
    if spec.notifications != ():
        _judge(found, "notifications", check_notifications, spec.notifications)
    if spec.retry_of is not None and not 0 < spec.retry_of <= 2**53:
        found.append(("retry_of", f"retry_of must be the id of a job, not {brief(spec.retry_of)}"))
    return found
