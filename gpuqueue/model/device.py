"""Devices that run jobs, and the figures measured on them. Pure: nothing here calls a driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from gpuqueue.model import xids
else:  # few devices have such errors
    xids = later("gpuqueue.model.xids")

#: The ends of a ``--devices`` that serves the CPU, or an engine, in addition to other devices. In this order.
BESIDE = (",cpu", ",slurm")


class DeviceKind(str, Enum):
    """The kind of a device. A simulated device stands for a GPU."""

    GPU = "gpu"
    CPU = "cpu"
    SIMULATED = "simulated"
    #: No device of the host, but an engine to which whole jobs are handed: Slurm.
    SLURM = "slurm"

    def __str__(self) -> str:
        return self.value

    @property
    def peak_source(self) -> PeakSource:
        """Return the source of memory samples on a device of this kind."""
        return _SAMPLED[self]

    @property
    def is_gpu(self) -> bool:
        """Return whether a device of this kind is a GPU, or stands for one."""
        return self in {DeviceKind.GPU, DeviceKind.SIMULATED}

    @property
    def is_engine(self) -> bool:
        """Return whether this is an engine, which runs whole jobs on machines of its own."""
        return self is DeviceKind.SLURM


class DeviceFilter(str, Enum):
    """The device kind that a job asks for. A job that asks for none has None, which differs from ANY."""

    #: Only a GPU, however long the wait.
    GPU = "gpu"
    #: Only the CPU of a host that serves its CPU.
    CPU = "cpu"
    #: A GPU or a CPU, whichever can take the job first.
    ANY = "any"
    #: No device here: the job is handed to Slurm (``--on slurm``).
    SLURM = "slurm"

    def __str__(self) -> str:
        return self.value

    @classmethod
    def parse(cls, text: object) -> DeviceFilter:
        """Return the device kind that *text* names. An engine is none: ``--on`` names it.

        Raises:
            BadRequest: *text* names none.

        """
        if not isinstance(text, str) or text not in KINDS:
            raise BadRequest(f"{brief(text)} is no kind of device: write {', '.join(KINDS)}")
        return cls(text)

    @classmethod
    def of_engine(cls, text: object) -> DeviceFilter:
        """Return the value for a job that is handed to the engine that *text* names.

        Raises:
            BadRequest: *text* names none.

        """
        if text != cls.SLURM.value:
            raise BadRequest(f"{brief(text)} is no engine: write {cls.SLURM}")
        return cls.SLURM

    @property
    def is_engine(self) -> bool:
        """Return whether the job is handed to an engine."""
        return self is DeviceFilter.SLURM


#: The device kinds that a job can ask for with ``--device``.
KINDS = (DeviceFilter.GPU, DeviceFilter.CPU, DeviceFilter.ANY)


def suits(device_filter: DeviceFilter | None, kind: DeviceKind, *, gpus_known: bool) -> bool:
    """Return whether a device of this *kind* may take a job that asks for *device_filter*.

    *gpus_known* is whether the queue knows any GPU, even a lost, drained or silent one. If so, a job that asks for no
    device kind waits for a GPU, so that it never runs on the CPU unnoticed. The scripts have the same rule (``suits``
    in ``gpuqueue/queue/lua/shared/state.lua``), and a test compares the two.
    """
    if kind.is_engine or (device_filter is not None and device_filter.is_engine):
        return device_filter is not None and device_filter.value == kind.value
    on_gpu = kind is not DeviceKind.CPU
    if device_filter is None:
        return on_gpu or not gpus_known
    return device_filter is DeviceFilter.ANY or on_gpu == (device_filter is DeviceFilter.GPU)


def names_gpus(spec: str) -> bool:
    """Return whether a host that serves *spec* (``--devices``) serves its GPUs, all or some of them."""
    return without_beside(spec) in {"auto", "gpu"} or cards_in(spec) is not None


def without_beside(spec: str) -> str:
    """Return *spec* (``--devices``) without what it serves in addition: ``gpu`` for ``gpu,cpu,slurm``."""
    for end in reversed(BESIDE):
        spec = spec.removesuffix(end)
    return spec


def cards_in(spec: str) -> frozenset[int] | None:
    """Return the indexes of the only cards that *spec* names, such as ``gpu:0,2``; None if it names no card."""
    kind, _, indexes = without_beside(spec).partition(":")
    words = indexes.split(",")
    is_list = kind == "gpu" and all(word.isdecimal() and word.isascii() for word in words)
    return frozenset(map(int, words)) if is_list else None


class PeakSource(str, Enum):
    """The source of a peak. Every peak has one."""

    #: The driver's own maximum of a process, if accounting is on. Exact for a run of one process, else a lower bound.
    NVML_ACCOUNTING = "nvml_accounting"
    #: The largest NVML sample of all processes of the run together.
    NVML_SAMPLED = "nvml_sampled"
    #: The maximum that torch's allocator reserved, if it exceeds the driver's figures. A lower bound.
    TORCH = "torch"
    #: The increase of the device's used memory, if the driver reports no process memory and the run was alone there.
    DEVICE_DELTA = "device_delta"
    #: Resident memory of the run's processes: samples of their sum, or the kernel's maximum of one process.
    HOST_RSS = "host_rss"
    #: Same as HOST_RSS, on a simulated device.
    SIMULATED = "simulated"
    #: No measurement was possible.
    NONE = "none"

    def __str__(self) -> str:
        return self.value

    @property
    def is_resident(self) -> bool:
        """Return whether the peak is the resident memory of processes, and no memory of a GPU."""
        return self in {PeakSource.HOST_RSS, PeakSource.SIMULATED}


_SAMPLED: Mapping[DeviceKind, PeakSource] = MappingProxyType(
    {
        DeviceKind.GPU: PeakSource.NVML_SAMPLED,
        DeviceKind.CPU: PeakSource.HOST_RSS,
        DeviceKind.SIMULATED: PeakSource.SIMULATED,
        DeviceKind.SLURM: PeakSource.NVML_SAMPLED,  # what the engine's accounting has is sampled with NVML
    }
)


#: The index of a MIG instance is 100 (card + 1) + slot. It never equals the index of a card, even after repartitioning.
MIG_STEP = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device of one host. ``uuid`` identifies it; ``index`` is for display only.

    ``mig_parent`` is the UUID of the card that a MIG instance belongs to, None for other devices. ``no_gpu`` is why no
    GPU was found, of a CPU served for that reason; None if it was asked for. ``context_bytes`` is what a process
    with a CUDA context and nothing else takes of such a device; None if it was not measured. ``unlisted`` is whether
    the driver did not list that process, so that no peak of a run is known.
    """

    uuid: str
    index: int
    name: str
    kind: DeviceKind
    total_bytes: int
    pci_bus: str | None = None
    mig_parent: str | None = None
    no_gpu: str | None = None
    context_bytes: int | None = None
    unlisted: bool = False

    @classmethod
    def unidentified(cls, card: int, host: str) -> Device:
        """Return the device that represents a *card* of *host* that has never answered. Its size is unknown."""
        return cls(uuid=f"card-{card}-{host}", index=card, name="unknown GPU", kind=DeviceKind.GPU, total_bytes=0)

    @property
    def is_unidentified(self) -> bool:
        """Return whether this represents a card that has never answered. It takes no job."""
        return self.kind is DeviceKind.GPU and not self.total_bytes

    @property
    def is_temporary(self) -> bool:
        """Return whether this is served only until the driver answers, in place of a GPU."""
        return self.is_unidentified or self.no_gpu is not None

    @property
    def card(self) -> int:
        """Return the index of the card, which for a MIG instance is that of the card that it belongs to."""
        return self.index if self.mig_parent is None else self.index // MIG_STEP - 1

    @property
    def mig_profile(self) -> str | None:
        """Return the profile of a MIG instance, such as ``1g.10gb``; None for other devices.

        The driver ends the name of an instance with it: ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``.
        """
        _, found, profile = self.name.rpartition(" MIG ")
        return profile if found and profile and self.mig_parent is not None else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A sample of the memory of one device.

    ``processes`` maps each pid on the device to its bytes, or to None if the driver does not report them.
    ``listed`` is false for the CPU: its processes are not listed, but measured one by one.
    """

    total_bytes: int
    free_bytes: int
    processes: Mapping[int, int | None] = field(default_factory=dict)
    listed: bool = True

    @property
    def used_bytes(self) -> int:
        """Return the bytes that are not free, including those of external processes."""
        return max(0, self.total_bytes - self.free_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The most memory that a run used on one device, with its source.

    ``samples`` counts the samples, ``na_samples`` those without a figure from the driver. ``interval_s`` is the mean
    time between two samples. ``shared`` is whether any sample showed another process on the device, None if there was
    no sample.
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
        """Return the peak of a run that could not be measured."""
        return cls(bytes=None, source=PeakSource.NONE, na_samples=na_samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class Activity:
    """What a run did with one device, apart from its memory. None means not measured.

    ``first_memory_s`` is the time from the start of the run to the first sample that showed memory of the run. It
    mostly covers imports, loading data and the first use of CUDA. Utilisation (shares of time from 0 to 1) and
    temperature are those of the whole device, including other processes.

    The ``own_`` figures are those of the run alone: the share of time in which the device worked for it, and in which
    its memory was read or written for it, as the mean and the 95th percentile of the samples.
    """

    first_memory_s: float | None = None
    utilisation_mean: float | None = None
    utilisation_max: float | None = None
    temperature_max_c: float | None = None
    own_utilisation_mean: float | None = None
    own_utilisation_p95: float | None = None
    own_bandwidth_mean: float | None = None
    own_bandwidth_p95: float | None = None


#: The names of these figures. Columns and JSON have the same names.
FIGURES: tuple[str, ...] = tuple(Activity.__slots__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Utilisation:
    """How much of the time a device worked for one process or one run, as shares from 0 to 1.

    ``busy`` is the share in which it computed, ``memory`` the share in which it read or wrote its memory, None if the
    driver does not report that.
    """

    busy: float
    memory: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """The memory of a run on one device over time: the largest sample of each step of ``step_s`` seconds.

    The first step begins at the start of the run. None marks a step without a sample: the worker was not running, or
    the driver reported no figure.
    """

    step_s: float
    bytes: tuple[int | None, ...]


#: Reasons for which a device throttles. The normal power cap is not among them, since it is no alarm.
HARDWARE_SLOWDOWN = "hardware slowdown"
SOFTWARE_THERMAL = "software thermal slowdown"
HARDWARE_THERMAL = "hardware thermal slowdown"
POWER_BRAKE = "power brake"
#: From this temperature on, in °C, a device whose own limit is unknown takes no new job, if the site sets no limit.
DEFAULT_LIMIT_C = 80.0
#: Compute modes in which nothing may run on a device, and in which one process at a time may.
PROHIBITED, EXCLUSIVE_PROCESS = "prohibited", "exclusive_process"
#: How far below a device's own limit new jobs are refused, in °C, if the site sets no limit.
LIMIT_MARGIN_C = 5.0
_RETIREMENTS: Mapping[str, str] = MappingProxyType(
    {
        "pending": "a row of memory is retired at the next reset",
        "failed": "a row of memory could not be retired, and the card should be replaced",
    }
)
#: The beginnings of what :func:`trouble_of` says of heat.
_HOT, _THROTTLED = "it is hot", "it is too hot to run at full speed"


#: What becomes of a row of memory with errors: it is retired at the next reset, or it cannot be.
PENDING, FAILED = "pending", "failed"


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported of a device, by its number in NVIDIA's list, and when the worker read it."""

    code: int
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The health of a device at one moment. None means that the device does not report the figure.

    ``limit_c`` is the device's own limit, above which it throttles. ``utilisation`` is a share of time from 0 to 1, and
    ``memory_utilisation`` the share of time in which its memory was read or written. ``power_w`` is the power that the
    device draws, in watts. ``throttled`` names the reasons for which the device throttles now. ``ecc_uncorrected``
    counts the memory errors since the driver started. ``retired_rows`` counts the rows of memory (pages, on older
    cards) that the device has retired since it was made, and ``retirement`` is PENDING or FAILED for a further one.
    ``xids`` are the last errors of the driver since the worker started, oldest first. ``compute_mode`` is default,
    prohibited or exclusive_process.
    """

    temperature_c: float | None = None
    limit_c: float | None = None
    utilisation: float | None = None
    memory_utilisation: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] | None = None
    ecc_uncorrected: int | None = None
    compute_mode: str | None = None
    retired_rows: int | None = None
    retirement: str | None = None
    xids: tuple[Xid, ...] | None = None


def trouble_of(health: Health, limit_c: float | None = None, *, without_errors: bool = False) -> str | None:
    """Return why a device should take no new job now, or None if nothing is known against it.

    *limit_c* is the temperature in °C from which on the site gives it none. By default it is a little below the limit
    of the device. *without_errors* is whether the site gives jobs only to devices without memory errors.
    """
    if health.compute_mode == PROHIBITED:
        return "its compute mode is prohibited: nothing may run on it until nvidia-smi -c DEFAULT allows it again"
    trouble = xids.trouble_after(health.xids) if health.xids else None
    if trouble is not None:
        return trouble
    if without_errors and (health.ecc_uncorrected or health.retirement):
        errors = memory_errors_in_words(health.ecc_uncorrected, None, health.retirement)
        return f"its memory has errors, and the site closes such devices: {errors}"
    own_c = health.limit_c
    if limit_c is None:
        hot_c = DEFAULT_LIMIT_C if own_c is None else own_c - LIMIT_MARGIN_C
    else:
        hot_c = limit_c if own_c is None else min(limit_c, own_c)
    if health.temperature_c is not None and health.temperature_c >= hot_c:
        whose = "its own limit" if hot_c == own_c else "the limit for new jobs"
        return f"{_HOT}: {health.temperature_c:.0f} °C, and {whose} is {hot_c:.0f} °C"
    heat = [word for word in health.throttled or () if word in (SOFTWARE_THERMAL, HARDWARE_THERMAL)]
    return f"{_THROTTLED}: {', '.join(heat)}" if heat else None


def memory_errors_in_words(errors: int | None, retired_rows: int | None, retirement: str | None) -> str:
    """Return a phrase about these figures of :class:`Health`, empty if there is nothing to say."""
    counted = "1 memory error" if errors == 1 else f"{errors} memory errors"
    rows = "1 row" if retired_rows == 1 else f"{retired_rows} rows"
    phrases = (
        f"{counted} that could not be corrected, since the driver started" if errors else "",
        f"{rows} of memory retired" if retired_rows else "",
        _RETIREMENTS.get(retirement or "", ""),
    )
    return "; ".join(filter(None, phrases))


def is_heat(trouble: str | None) -> bool:
    """Return whether *trouble*, which :func:`trouble_of` returned, is the heat of the device."""
    return trouble is not None and trouble.startswith((_HOT, _THROTTLED))
