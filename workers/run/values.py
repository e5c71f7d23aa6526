"""The contents of the files of a run directory as values: the claim, the shim's spec and the exit.

:mod:`workers.shim.supervisor` lists the files and their writers. :mod:`workers.run.directory` writes and reads them for
the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.text.json_fields import Fields
from gpuqueue.text.sanitize import in_one_line

#: The largest exit code of a process; no signal number is larger.
MOST_STATUS = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class ShimSpec:
    """The shim's spec of a run. ``start_before`` is on the host's monotonic clock, in seconds."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    time_limit_s: float | None
    kill_grace_s: float
    start_before: float
    umask: int
    #: Largest size of the log, in bytes; None for no limit.
    log_limit_bytes: int | None = None
    #: Columns and rows of the job's terminal; None for no terminal.
    pty: tuple[int, int] | None = None
    #: The longest kill grace of a lost run, whose job another worker may claim soon; None for the usual grace.
    fence_grace_s: float | None = None
    #: The number of the signal before the time limit, and how many seconds before; None for no signal.
    signal: tuple[int, float] | None = None
    #: Whether standard error goes into a separate file.
    separate_stderr: bool = False
    #: Whether the terminal is also standard input, so that users can type on it.
    typed: bool = False
    #: The submitter if the job runs as its submitter: ``name`` and ``uid``. None: it runs as the worker.
    user: Mapping[str, str | int] | None = None
    #: The socket of the launcher, which starts it as the submitter.
    launcher: str | None = None
    #: How to unpack the code that came with the job (:func:`workers.shim.code.unpack`). None: none came.
    code: Mapping[str, Any] | None = None
    #: The most that the run may use of the host: ``memory_bytes`` and ``cpus``, each None for no limit.
    limits: Mapping[str, float | None] | None = None
    #: The signature of the service, by which a launcher knows the job (:mod:`gpuqueue.model.ticket`). None: there is
    #: none.
    ticket: str | None = None

    def plain(self) -> dict[str, Any]:
        """Return the spec as plain values for the file."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """The claim of a run, with all that another worker of the same device needs to adopt the run."""

    job_id: int
    token: str
    devices: tuple[RunDevice, ...]
    #: Whether the job's memory is capped at its request.
    capped: bool = True
    #: The time of the claim on the store's clock, in milliseconds; None if it was not recorded.
    claimed_ms: int | None = None
    #: When a probe ends early: the text of a :class:`gpuqueue.model.probe.Probe`. None: the job is no probe.
    probe: str | None = None

    def plain(self) -> dict[str, Any]:
        """Return the claim as plain values for the file."""
        return to_stored(self)  # type: ignore[no-any-return] # a value becomes a dictionary

    @classmethod
    def of(cls, plain: Fields) -> Held:
        """Return the claim in the file's fields.

        Raises:
            Unreadable: The fields are not a valid claim.

        """
        held: Held = from_plain(cls, plain.whole_object(), "the claim of a run")
        if not held.devices:
            raise plain.wrong("devices", "that of this run")
        return held


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """The exit of a run, which the shim writes after the run's last process is gone, unless the shim is lost."""

    ending: Ending
    duration_s: float | None
    max_rss_bytes: int | None
    #: Whether the job never began because the host was short of a resource: a process, a descriptor, disk space.
    hosts_fault: bool = False
    #: Whether the job never began because its directory or program is missing on this host.
    host_lacks: bool = False
    #: Whether the shim is gone without having written an exit.
    shim_vanished: bool = False

    @classmethod
    def of(cls, plain: Fields) -> Exit:
        """Return the exit in the file's fields.

        Raises:
            Unreadable: The fields are not a valid exit.

        """
        return cls(
            ending=_ending(plain),
            duration_s=plain.number_or_none("duration_s"),
            max_rss_bytes=plain.whole_or_none("max_rss_bytes"),
            hosts_fault=plain.flag("hosts_fault", default=False),
            host_lacks=plain.flag("host_lacks", default=False),
        )


def _ending(plain: Fields) -> Ending:
    status = plain.whole("status", least=-MOST_STATUS) if plain.has("status") else None
    kind = plain.text("kind")
    detail = in_one_line(plain.text("detail", ""))
    if kind == EndingKind.EXITED.value and status is not None:
        return Ending.from_status(status, detail)
    if kind in {each.value for each in EndingKind if each is not EndingKind.EXITED}:
        return Ending.stopped(EndingKind(kind), status, detail)
    raise plain.wrong("kind", "a kind of ending, with the status that goes with it")
