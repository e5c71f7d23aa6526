"""Statistics of a period: device time, allocated and used memory, waits, endings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from gpuqueue.lazy.frozen import dataclass

#: Most days of a table by day, and most steps of a chart, in one query.
MAX_STEPS = 400
#: The parts of a device's memory from which on a job on one device is large, and from which on it has the whole device.
LARGE_PART, WHOLE_PART = 0.5, 0.9
#: The part of all work that light users do together.
LIGHT_PART = 0.1


class By(str, Enum):
    """The grouping of statistics."""

    USER = "user"
    DEVICE = "device"
    HOST = "host"
    #: Local days. A run that spans several days counts in each, with its device time on that day.
    DAY = "day"
    #: The :class:`Size` of the run; runs on a CPU or an engine by that kind, and ``unknown`` if the device is unknown.
    SIZE = "size"

    def __str__(self) -> str:
        return self.value


class Size(str, Enum):
    """How much of its devices a job has."""

    #: At most LARGE_PART of a device.
    SMALL = "small"
    #: More, so that no other such job fits beside it.
    LARGE = "large"
    #: WHOLE_PART of a device, or more.
    WHOLE = "whole"
    #: Several devices.
    SEVERAL = "several"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def of(cls, mem_bytes: int, total_bytes: int, devices: int) -> Size:
        """Return the size of a job that has *mem_bytes* on each of *devices* devices of *total_bytes*."""
        if devices > 1:
            return cls.SEVERAL
        part = mem_bytes / total_bytes
        return cls.WHOLE if part >= WHOLE_PART else cls.LARGE if part > LARGE_PART else cls.SMALL


def light_users(work: Mapping[str, float]) -> frozenset[str]:
    """Return the users with the least *work* who together do at most LIGHT_PART of it; at least one, if there are any.

    *work* maps users to their work, in any unit.
    """
    light: list[str] = []
    left = LIGHT_PART * sum(work.values())
    for user, its in sorted(work.items(), key=lambda pair: pair[1]):
        left -= its
        if left < 0 and light:
            break
        light.append(user)
    return frozenset(light)


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Totals of the runs of one group within a period. None means unknown, 0 means none.

    A run counts on each of its devices, from its claim to its end on the store's clock, as far as that time lies in the
    period. A run that has not ended counts up to now. ``held_s`` is the sum of these times. ``gpu_s`` and ``cpu_s`` are
    the time of the devices: at each moment, the runs on a device share its time by their allocated memory, and one
    alone has all of it. So all runs together never have more time than the devices.

    ``asked_byte_s`` is allocated memory times time. ``measured_byte_s`` is its part for which the peak is known, and
    ``peak_byte_s`` is the peak times the same time. ``utilisation`` is the mean of the devices during runs, weighted by
    time.

    Waits are those of jobs whose first claim lies within the period. ``ended`` counts the runs that ended within it,
    and the fields after it count the ways in which they ended. ``repaired`` are those ``out_of_memory`` after which the
    job ran again. ``failed`` are all but succeeded, cancelled and repaired.
    """

    jobs: int = 0
    runs: int = 0
    gpu_s: float = 0.0
    cpu_s: float = 0.0
    held_s: float = 0.0
    asked_byte_s: float = 0.0
    measured_byte_s: float = 0.0
    peak_byte_s: float = 0.0
    measured_s: float = 0.0
    utilisation: float | None = None
    waits: int = 0
    wait_mean_s: float | None = None
    wait_median_s: float | None = None
    wait_p95_s: float | None = None
    wait_max_s: float | None = None
    ended: int = 0
    succeeded: int = 0
    cancelled: int = 0
    out_of_memory: int = 0
    repaired: int = 0
    timed_out: int = 0
    idle: int = 0
    lost: int = 0

    DERIVED = ("failed", "failure_rate", "out_of_memory_rate", "asked_bytes", "peak_bytes", "used", "measured")

    @property
    def failed(self) -> int:
        """How many runs failed. A run is no failure if the job then ran again with other memory."""
        return self.ended - self.succeeded - self.cancelled - self.repaired

    @property
    def failure_rate(self) -> float | None:
        """``failed`` as a share of ``ended``, or None if no run ended."""
        return self.failed / self.ended if self.ended else None

    @property
    def out_of_memory_rate(self) -> float | None:
        """``out_of_memory`` as a share of ``ended``, or None if no run ended."""
        return self.out_of_memory / self.ended if self.ended else None

    @property
    def asked_bytes(self) -> float | None:
        """The allocated memory on a device, averaged over time."""
        return self.asked_byte_s / self.held_s if self.held_s else None

    @property
    def peak_bytes(self) -> float | None:
        """The peak on a device, averaged over the time for which it is known."""
        return self.peak_byte_s / self.measured_s if self.measured_s else None

    @property
    def used(self) -> float | None:
        """The peaks as a share of the allocated memory, weighted by time, where the peak is known."""
        return self.peak_byte_s / self.measured_byte_s if self.measured_byte_s else None

    @property
    def measured(self) -> float | None:
        """The share of the device time for which the peak is known."""
        return min(1.0, self.measured_s / self.held_s) if self.held_s else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One group with its figures. ``key`` identifies the group, ``label`` is for display."""

    key: str
    label: str
    figures: Figures


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """By how much runs beside others on their devices took longer than runs of the same command that were alone.

    ``factor`` is the time of the shared runs as a multiple of what as many runs alone took. ``commands`` had both.
    """

    factor: float
    commands: int
    shared_runs: int
    alone_runs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """The groups of a period and the total. A run on two devices, or over two days, is one run in the total.

    ``stretch`` is None if no command had runs beside others and runs alone.

    ``first_at`` and ``last_at`` are when the first job of the history was submitted, and when the last run ended,
    ``until`` if one goes on: so a reader knows for which periods there are runs. None if there are none.

    ``reserved_idle_device_s`` is for how long devices were idle because they were reserved, since the store was opened:
    not only in the period. None for the jobs of one user, or if the store did not answer.
    """

    by: By
    since: datetime
    until: datetime
    groups: tuple[Group, ...]
    total: Figures
    stretch: Stretch | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None
    reserved_idle_device_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """A period in steps: the figures of all jobs together, and of each device that had runs."""

    bounds: tuple[datetime, ...]
    steps: tuple[Figures, ...]
    devices: tuple[tuple[str, tuple[Figures, ...]], ...]
