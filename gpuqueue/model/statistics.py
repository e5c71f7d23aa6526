"""What statistics tell of a period: how long devices were held, asked against used, waits, endings. Pure."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from enum import Enum
from typing import Any

from gpuqueue.lazy.frozen import dataclass

#: Most days, and steps of time in a chart, that one question may be cut into.
MAX_STEPS = 400


class By(str, Enum):
    """By what statistics are grouped."""

    USER = "user"
    DEVICE = "device"
    HOST = "host"
    #: Local days. A run that spans several counts in each, with the time that it held its devices there.
    DAY = "day"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What the runs of one group come to within a period. None is not known; 0 is a known nothing.

    A run counts on each of its devices, from its claim to its end on the store's clock, as far as that lies in the
    period; one that has not ended counts up to now. ``gpu_s`` and ``cpu_s`` are these times summed up.

    ``asked_byte_s`` is promised memory times time. Where the peak is known (``measured_byte_s`` of it), ``peak_byte_s``
    is the peak times the same time. ``utilisation`` is the devices' mean while runs were there, weighted by time.

    Waits are those of jobs that were claimed for the first time within the period. ``ended`` counts the runs that
    ended within it, and below it how; ``failed`` are all but the succeeded and the cancelled.
    """

    jobs: int = 0
    runs: int = 0
    gpu_s: float = 0.0
    cpu_s: float = 0.0
    asked_byte_s: float = 0.0
    measured_byte_s: float = 0.0
    peak_byte_s: float = 0.0
    measured_s: float = 0.0
    utilisation: float | None = None
    waits: int = 0
    wait_median_s: float | None = None
    wait_p95_s: float | None = None
    wait_max_s: float | None = None
    ended: int = 0
    succeeded: int = 0
    cancelled: int = 0
    out_of_memory: int = 0
    timed_out: int = 0
    lost: int = 0

    @property
    def failed(self) -> int:
        """Return how many runs ended in any way that nobody wanted."""
        return self.ended - self.succeeded - self.cancelled

    @property
    def failure_rate(self) -> float | None:
        """Return ``failed`` as a share of ``ended``; None where nothing ended."""
        return self.failed / self.ended if self.ended else None

    @property
    def out_of_memory_rate(self) -> float | None:
        """Return ``out_of_memory`` as a share of ``ended``; None where nothing ended."""
        return self.out_of_memory / self.ended if self.ended else None

    @property
    def held_s(self) -> float:
        """Return how long devices of all kinds were held."""
        return self.gpu_s + self.cpu_s

    @property
    def asked_bytes(self) -> float | None:
        """Return what was promised on a device, the mean over the time."""
        return self.asked_byte_s / self.held_s if self.held_s else None

    @property
    def peak_bytes(self) -> float | None:
        """Return the peak on a device, the mean over the time of which it is known."""
        return self.peak_byte_s / self.measured_s if self.measured_s else None

    @property
    def used(self) -> float | None:
        """Return the peaks as a share of what was promised for them, weighted by time."""
        return self.peak_byte_s / self.measured_byte_s if self.measured_byte_s else None

    @property
    def measured(self) -> float | None:
        """Return the share of the time of which the peak is known."""
        return min(1.0, self.measured_s / self.held_s) if self.held_s else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One group with its figures. ``key`` is what tells it apart, ``label`` what people call it."""

    key: str
    label: str
    figures: Figures


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """The groups of a period, and all of it together: a run on two devices, or over two days, is one run there."""

    by: By
    since: datetime
    until: datetime
    groups: tuple[Group, ...]
    total: Figures


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """How a period went, step by step: all jobs together, and each device that was held."""

    bounds: tuple[datetime, ...]
    steps: tuple[Figures, ...]
    devices: tuple[tuple[str, tuple[Figures, ...]], ...]


#: Figures that are worked out from the others.
RATES = ("failed", "failure_rate", "out_of_memory_rate", "asked_bytes", "peak_bytes", "used", "measured")


def figures_to_plain(figures: Figures) -> dict[str, Any]:
    """Return *figures* as plain values, what is worked out from them included."""
    return {name: getattr(figures, name) for name in (*(field.name for field in fields(figures)), *RATES)}


def statistics_to_plain(statistics: Statistics) -> dict[str, Any]:
    """Return *statistics* as plain values."""
    return {
        "by": statistics.by.value,
        "since_at": statistics.since.isoformat(timespec="milliseconds"),
        "until_at": statistics.until.isoformat(timespec="milliseconds"),
        "total": figures_to_plain(statistics.total),
        "groups": [
            {"key": group.key, "label": group.label, **figures_to_plain(group.figures)} for group in statistics.groups
        ],
    }
