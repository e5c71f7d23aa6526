"""What the files of a run directory hold, as values: the claim, what the shim is to run, and how that ended.

What the files are called, and who writes them, stands in :mod:`workers.shim.supervisor`; :mod:`workers.run.directory`
puts them there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuqueue.codec import run_device_from_plain, run_device_to_plain
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.run import Ending, EndingKind, RunDevice
from gpuqueue.text.json_fields import Fields
from gpuqueue.text.sanitize import in_one_line

#: No process ends with a larger signal or exit code.
MOST_STATUS = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class ShimSpec:
    """What the shim must know to run a job. ``start_before`` is on the host's monotonic clock, in seconds."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    time_limit_s: float | None
    kill_grace_s: float
    start_before: float
    umask: int
    #: Largest log, in bytes; None: no limit.
    log_limit_bytes: int | None = None
    #: Columns and rows of the terminal that the job wants; None: it wants none.
    pty: tuple[int, int] | None = None
    #: The grace of a run that may soon be another's; None: the same.
    fence_grace_s: float | None = None
    #: The number of the signal that comes before the time limit, and how many seconds before; None: none.
    signal: tuple[int, float] | None = None
    #: Whether standard error goes into a file of its own.
    separate_stderr: bool = False
    #: Whether the terminal is standard input as well, and people may type on it.
    typed: bool = False

    def plain(self) -> dict[str, Any]:
        """Return it as the file has it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What a run holds: enough for another worker of the same device to adopt it."""

    job_id: int
    token: str
    devices: tuple[RunDevice, ...]
    #: Whether the job is held to what it asked for.
    capped: bool = True
    #: When it was claimed, on the store's clock; None if nobody wrote that down.
    claimed_ms: int | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as the file has it."""
        devices = [run_device_to_plain(each) for each in self.devices]
        plain = {"job_id": self.job_id, "token": self.token, "capped": self.capped, "claimed_ms": self.claimed_ms}
        return {**plain, "devices": devices}

    @classmethod
    def of(cls, plain: Fields) -> Held:
        """Return what the file says.

        Raises:
            Unreadable: it makes no sense.

        """
        held = cls(
            job_id=plain.whole("job_id"),
            token=plain.text("token"),
            devices=tuple(run_device_from_plain(each) for each in plain.each("devices")),
            capped=plain.flag("capped", default=True),
            claimed_ms=plain.whole_or_none("claimed_ms"),
        )
        if not held.devices:
            raise plain.wrong("devices", "that of this run")
        return held


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """What the shim wrote when the last process of the run was gone."""

    ending: Ending
    duration_s: float | None
    max_rss_bytes: int | None
    #: The job never began, for want of something that the host must give: a process, a descriptor, room.
    hosts_fault: bool = False

    @classmethod
    def of(cls, plain: Fields) -> Exit:
        """Return what the file says.

        Raises:
            Unreadable: it makes no sense.

        """
        return cls(
            ending=_ending(plain),
            duration_s=plain.number_or_none("duration_s"),
            max_rss_bytes=plain.whole_or_none("max_rss_bytes"),
            hosts_fault=plain.flag("hosts_fault", default=False),
        )


def _ending(plain: Fields) -> Ending:
    status = plain.whole("status", least=-MOST_STATUS) if plain.has("status") else None
    kind = plain.text("kind")
    if kind == EndingKind.EXITED.value and status is not None:
        return Ending.from_status(status)
    if kind in {each.value for each in EndingKind if each is not EndingKind.EXITED}:
        return Ending.stopped(EndingKind(kind), status, in_one_line(plain.text("detail", "")))
    raise plain.wrong("kind", "a kind of ending, with the status that goes with it")
