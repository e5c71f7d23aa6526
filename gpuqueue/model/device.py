"""A device that can run jobs, and a look at its memory. Pure: nothing here touches a driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from types import MappingProxyType

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import brief


class DeviceKind(str, Enum):
    """What a device is made of. A simulated one stands for a GPU."""

    GPU = "gpu"
    CPU = "cpu"
    SIMULATED = "simulated"

    def __str__(self) -> str:
        return self.value

    @property
    def peak_source(self) -> PeakSource:
        """Return where the samples of a run's memory on such a device come from."""
        return _SAMPLED[self]


class DeviceWish(str, Enum):
    """On what a job wants to run. A job that does not say has no wish, which is None and not ANY."""

    #: Only on a GPU, however long that takes.
    GPU = "gpu"
    #: Only on the CPU of a host that serves it.
    CPU = "cpu"
    #: On whichever can take it first.
    ANY = "any"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def parse(cls, text: object) -> DeviceWish:
        """Return the wish that *text* names.

        Raises:
            BadRequest: it names none.

        """
        if not isinstance(text, str) or text not in list(cls):
            raise BadRequest(f"{brief(text)} is no kind of device: say {', '.join(cls)}")
        return cls(text)


def suits(wish: DeviceWish | None, kind: DeviceKind, *, gpus_known: bool) -> bool:
    """Return whether a device of this *kind* may take a job with this *wish*.

    *gpus_known* is whether the queue knows of any GPU, be it lost, drained or silent: then a job that does not say
    waits for one, and never runs on the CPU unseen. The claim script has the same rule (``suits`` in
    ``queue/lua/state.lua``), and a test holds the two together.
    """
    on_gpu = kind is not DeviceKind.CPU
    if wish is None:
        return on_gpu or not gpus_known
    return wish is DeviceWish.ANY or on_gpu == (wish is DeviceWish.GPU)


class PeakSource(str, Enum):
    """Where a peak figure comes from; a figure without a source is worth nothing."""

    #: The driver's own maximum of a process, where its accounting is on: no sample can miss it.
    NVML_ACCOUNTING = "nvml_accounting"
    #: The largest of the samples that NVML gave for the job's processes together.
    NVML_SAMPLED = "nvml_sampled"
    #: What torch's allocator reserved, where that is more than the driver was seen to give: a lower bound.
    TORCH = "torch"
    #: How much fuller the device became, where the driver tells nothing of its processes and nobody else was there.
    DEVICE_DELTA = "device_delta"
    #: Resident memory of the job's processes: samples of the sum, or the kernel's maximum of one process.
    HOST_RSS = "host_rss"
    #: As HOST_RSS, on a simulated device.
    SIMULATED = "simulated"
    #: Nothing could be seen.
    NONE = "none"

    def __str__(self) -> str:
        return self.value


_SAMPLED: Mapping[DeviceKind, PeakSource] = MappingProxyType(
    {
        DeviceKind.GPU: PeakSource.NVML_SAMPLED,
        DeviceKind.CPU: PeakSource.HOST_RSS,
        DeviceKind.SIMULATED: PeakSource.SIMULATED,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device of one host. ``uuid`` is its identity; ``index`` is only for people.

    ``mig_parent`` is the uuid of the card that a MIG instance is a part of, None for everything else.
    """

    uuid: str
    index: int
    name: str
    kind: DeviceKind
    total_bytes: int
    pci_bus: str | None = None
    mig_parent: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A look at the memory of one device at one moment.

    ``processes`` maps each pid on the device to its bytes, or to None where the driver will not say.
    ``listed`` is false for the CPU, whose processes are not listed but measured one by one.
    """

    total_bytes: int
    free_bytes: int
    processes: Mapping[int, int | None] = field(default_factory=dict)
    listed: bool = True

    @property
    def used_bytes(self) -> int:
        """Return the bytes that are not free, whoever holds them."""
        return max(0, self.total_bytes - self.free_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The most memory that a run held on one device, with the evidence for the figure.

    ``samples`` counts the looks, ``na_samples`` those in which the driver would not say, ``interval_s``
    is the mean time between two looks. ``shared`` is true when some other process
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """What a run did with one device, beside holding memory; None is what nobody could see.

    ``first_memory_s`` is the time from the start of the run to the first sample that showed memory of it: mostly
    imports, data and the first use of CUDA. Utilisation (shares of time from 0 to 1) and temperature are the whole
    device's, whoever used it beside the run.
    """

    first_memory_s: float | None = None
    utilisation_mean: float | None = None
    utilisation_max: float | None = None
    temperature_max_c: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """How a run's memory on one device went: the largest sample of each step of ``step_s`` seconds since its start.

    None stands for a step without a sample: the worker was away, or the driver would not say.
    """

    step_s: float
    bytes: tuple[int | None, ...]


#: What slows a device down beside its normal power cap, which is no alarm.
HARDWARE_SLOWDOWN = "hardware slowdown"
SOFTWARE_THERMAL = "software thermal slowdown"
HARDWARE_THERMAL = "hardware thermal slowdown"
POWER_BRAKE = "power brake"
#: Above this a device takes no new job, even where its own line is higher.
SOFT_LIMIT_C = 80.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """How a device is at one moment; None is what it will not tell, never a zero.

    ``limit_c`` is the device's own line, above which it slows down. ``utilisation`` and ``memory_utilisation`` are
    shares of time from 0 to 1, ``throttled`` names what slows the device down now, ``ecc_uncorrected`` counts the
    memory errors since the driver started, and ``compute_mode`` is default, prohibited or exclusive_process.
    """

    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    limit_c: float | None = None
    power_w: float | None = None
    utilisation: float | None = None
    memory_utilisation: float | None = None
    throttled: tuple[str, ...] | None = None
    ecc_uncorrected: int | None = None
    compute_mode: str | None = None


def trouble_of(health: Health, *, soft_limit_c: float = SOFT_LIMIT_C) -> str | None:
    """Return in words why a device should take no new job now, None when nothing known speaks against it."""
    if health.compute_mode == "prohibited":
        return "its compute mode is prohibited: nothing may run on it until nvidia-smi -c DEFAULT allows it again"
    hot_c = soft_limit_c if health.limit_c is None else min(soft_limit_c, health.limit_c)
    if health.temperature_c is not None and health.temperature_c >= hot_c:
        whose = "the device's own line" if hot_c == health.limit_c else "the soft line"
        return f"it is hot: {health.temperature_c:.0f} °C, and {whose} is {hot_c:.0f} °C"
    heat = [word for word in health.throttled or () if word in (SOFTWARE_THERMAL, HARDWARE_THERMAL)]
    return f"it is too hot to run at full speed: {', '.join(heat)}" if heat else None
