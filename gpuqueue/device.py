"""A device that can run jobs, and a look at its memory. Pure: nothing here touches a driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class DeviceKind(str, Enum):
    """What a device is made of."""

    GPU = "gpu"
    CPU = "cpu"
    SIMULATED = "simulated"

    def __str__(self) -> str:
        return self.value


class PeakSource(str, Enum):
    """Where a peak figure comes from; a figure without a source is worth nothing."""

    #: The largest of the samples that NVML gave for the job's processes.
    NVML_SAMPLED = "nvml_sampled"
    #: Resident memory of the job's processes: samples of the sum, or the kernel's maximum of one process.
    HOST_RSS = "host_rss"
    #: As HOST_RSS, on a simulated device.
    SIMULATED = "simulated"
    #: Nothing could be seen.
    NONE = "none"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device of one host. ``uuid`` is its identity; ``index`` is only for people."""

    uuid: str
    index: int
    name: str
    kind: DeviceKind
    total_bytes: int
    pci_bus: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A look at the memory of one device at one moment.

    ``processes`` maps each pid on the device to its bytes, or to None where the driver will not say.
    It is empty for the CPU, whose processes are not listed but measured one by one.
    """

    total_bytes: int
    free_bytes: int
    processes: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def used_bytes(self) -> int:
        """Return the bytes that are not free, whoever holds them."""
        return max(0, self.total_bytes - self.free_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The most memory that a run held on one device, with the evidence for the figure.

    ``samples`` counts the looks, ``na_samples`` those in which the driver would not say, ``interval_s``
    is the time between two looks once the run was settled. ``shared`` is true when some other process
    was on the device at any look, None when nobody looked.
    """

    bytes: int | None
    source: PeakSource
    samples: int = 0
    na_samples: int = 0
    interval_s: float | None = None
    shared: bool | None = None

    def __post_init__(self) -> None:
        if (self.bytes is None) != (self.source is PeakSource.NONE):
            raise ValueError(f"a peak of {self.bytes} bytes cannot come from {self.source}")

    @classmethod
    def unknown(cls, *, na_samples: int = 0) -> Peak:
        """Return the peak of a run that nobody could measure."""
        return cls(bytes=None, source=PeakSource.NONE, na_samples=na_samples)
