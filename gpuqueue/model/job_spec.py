"""The request of a job, with its warning signal, git checkout and priority, and the account that submits it. Pure."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING

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
    from gpuqueue.model import code_snapshot, file_patterns, host_limits, output_file
    from gpuqueue.model import probe as probes
else:
    code_snapshot = later("gpuqueue.model.code_snapshot")
    file_patterns = later("gpuqueue.model.file_patterns")
    host_limits = later("gpuqueue.model.host_limits")
    output_file = later("gpuqueue.model.output_file")
    probes = later("gpuqueue.model.probe")

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
      ``placement`` restricts the devices further.
    - ``env`` is the submitter's environment. It may hold secrets, so ``repr`` omits it. ``umask`` is the submitter's.
    - ``script`` and ``interpreter`` are set if the job is a Python script. ``snapshot`` is the text of a
      :class:`~gpuqueue.model.code_snapshot.CodeSnapshot` if the code travels with the job: the job then runs in a
      directory of its own, and ``cwd`` is where it was submitted. ``keep`` are patterns of files there to keep longer
      than the directory. ``git`` is the checkout of ``cwd`` at submit.
    - ``environment`` is the name of a Python environment, whose program each host knows by its setting.
    - With ``warm``, the submitter states that a warm interpreter may become the first process.
    - ``pty`` is the size of the job's terminal, None for output to a file. ``separate_stderr`` writes standard error to
      a file of its own.
    - ``waits`` is what the job waits for besides a device. ``retries`` is how often it runs again after a failure.
      ``signal`` is sent to the first process before the time limit.
    - ``mem_source`` is the text of a :class:`~gpuqueue.model.mem_source.MemSource`, None if nobody knows where the
      memory of the job came from.
    - ``expected_utilisation`` is the share of time, 0 to 1, in which it probably uses each device. None: unknown.
    - ``probe`` is the text of a :class:`~gpuqueue.model.probe.Probe` if the job runs only to find out its memory.
    - ``cpus`` and ``cpu_mem_bytes`` are the most processors and host memory that the job may use.
    - ``output`` and ``error`` name the links to the log and to standard error that each run makes in ``cwd``, with the
      codes of :mod:`gpuqueue.model.output_file`.
    - ``visible`` is how the job finds its GPUs. None means as the setting ``visible`` of their host says.
    - ``given_in`` is the file and line of each option that was not typed, such as ``mem``: ``train.sh line 2``.
    - ``notifications`` are the notifications to send at the final end of the job.
    - ``retry_of`` is the id of the job that a user retries with this one. ``tags`` are the initial tags.
    """

    argv: tuple[str, ...]
    cwd: str
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
    visible: Visible | None = None
    output: str | None = None
    error: str | None = None
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
        if not self.argv or not self.argv[0]:
            raise BadRequest("there is no command to run: name a script, or put a command after --")
        if not 0 < self.mem_bytes <= MAX_BYTES:
            asked = brief(self.mem_bytes)
            raise BadRequest(f"a job cannot ask for {asked} bytes of memory: give a size above 0, at most 1024T")
        self._check_devices()
        self._check_course()
        if self.waits.followed is not None and self.array is None:
            other = self.waits.followed
            raise BadRequest(f"--after {other}:corr is for arrays: give the --array of job {other}, or --after {other}")
        check_notifications(self.notifications)
        if self.retry_of is not None and not 0 < self.retry_of <= 2**53:
            raise BadRequest(f"retry_of must be the id of a job, not {brief(self.retry_of)}")
        if not self.name:
            raise BadRequest("the name is empty: give a name, or none")
        if len(self.name) > MAX_NAME:
            raise BadRequest(f"a job's name must have 1 to {MAX_NAME} characters")
        if not self.cwd.startswith("/"):
            raise BadRequest(f"the working directory {brief(self.cwd)} is not absolute")
        self._check_code()
        python = "x" if self.environment is None else self.environment
        for what, word in (("user", self.account.name), ("pool", self.pool or "x"), ("environment", python)):
            name_of(f"usable {what} name", word)
        texts = (*self.argv, self.cwd, self.name, self.account.host, *self.env, *self.env.values())
        if "\0" in "".join(texts):
            raise BadRequest(
                "an argument, the environment or a path holds a NUL character, which no process can be given"
            )

    def _check_code(self) -> None:
        if self.snapshot is not None:
            code_snapshot.CodeSnapshot.parse(self.snapshot)
        if self.keep:
            file_patterns.of_request(self.keep, with_code=self.snapshot is not None)

    def _check_course(self) -> None:
        if self.retries.times and not self.requeue:
            raise BadRequest("a job that must not run twice cannot be retried: leave out --retries or --no-requeue")
        if self.time_limit_s is not None and not 0 < self.time_limit_s <= MAX_S:
            raise BadRequest("a time limit must be above 0 and at most ten years")
        if self.signal is not None:
            self.signal.check(self.time_limit_s)
        if self.probe is not None:
            probes.Probe.parse(self.probe).check(self.time_limit_s, is_array=self.array is not None)
        if self.cpus is not None or self.cpu_mem_bytes is not None:
            host_limits.check(self.cpus, self.cpu_mem_bytes)
        if self.pty is not None and self.separate_stderr:
            raise BadRequest("a terminal has one output: choose --pty or --separate-stderr")
        links = [each for each in (self.output, self.error) if each is not None]
        for each in links:
            output_file.check(each)
        if links and self.snapshot is not None:
            raise BadRequest(output_file.NOT_HERE)

    def _check_devices(self) -> None:
        if self.expected_utilisation is not None and not 0 <= self.expected_utilisation <= 1:
            raise BadRequest(f"expected_utilisation is a share from 0 to 1, not {brief(self.expected_utilisation)}")
        if not 1 <= self.gpus <= 64:  # noqa: PLR2004 - more than any host has
            raise BadRequest(f"a job cannot ask for {brief(self.gpus)} devices: give a number from 1 to 64")
        if self.device is DeviceFilter.CPU and self.gpus > 1:
            raise BadRequest(f"a host serves its CPU as one device, not as {self.gpus}: ask for one device")
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
        return Shape.of(self.mem_bytes, self.time_limit_s, self.gpus, self.pool, self.device, self.placement)

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
