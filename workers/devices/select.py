"""Selects the devices that a worker serves, also GPUs and the CPU together, and finds the device that a user names."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.model.device import Device, DeviceKind, Health, Reading, Utilisation, cards_in, without_beside
from gpuqueue.text.units import GIB
from workers.devices.backend import Driverless
from workers.devices.cpu import CpuBackend
from workers.devices.deadline import Deadlined
from workers.devices.simulated import PREFIX, SimulatedBackend

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from gpuqueue.settings.settings import Settings
    from workers.devices.backend import DeviceBackend

log = logging.getLogger(__name__)


def chosen(settings: Settings, spec: str | None = None) -> DeviceBackend:
    """Return the devices that *spec*, by default the setting, names on this host. See :func:`choose`."""
    return choose(spec or settings.devices, settings.host, settings.runs_dir, _known(settings))


def remember(settings: Settings, devices: Collection[Device]) -> None:
    """Write down the GPUs among *devices*, so that a card that does not answer later keeps its identity.

    Those that are written down stay while no GPU is found: they may answer again.
    """
    if any(device.no_gpu is not None for device in devices):
        return
    path = _path(settings)
    gpus = [device for device in devices if device.kind is DeviceKind.GPU and not device.is_unidentified]
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(to_stored(gpus)), encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        log.warning("the GPUs cannot be written down: %s", error)


def _known(settings: Settings) -> tuple[Device, ...]:
    """Return the GPUs that were written down, none if they cannot be read."""
    with suppress(OSError, ValueError, Unreadable):
        plain = json.loads(_path(settings).read_text(encoding="utf-8"))
        devices: tuple[Device, ...] = from_plain(tuple[Device, ...], plain)
        return devices
    return ()


def _path(settings: Settings) -> Path:
    return settings.state_dir / "devices" / "gpus.json"


def choose(spec: str, host: str, runs_dir: Path | None = None, known: Collection[Device] = ()) -> DeviceBackend:
    """Return the devices that *spec* names: ``auto``, ``gpu``, ``cpu``, or simulated ones like ``sim:4x24G``.

    ``gpu:0,2`` selects the GPUs 0 and 2 of the driver's list, and asks the driver for no other. *known* are GPUs that
    an earlier process has seen; one of them that does not answer is served as soon as it does.

    ``auto`` selects the GPUs if there are any, and otherwise the CPU. With a broken driver it raises instead of
    selecting the CPU, because jobs meant for a GPU would then run on the CPU, slowly and without a warning. With the
    suffix ``,cpu``, as in ``gpu,cpu``, the CPU is served in addition to the other devices; with ``,slurm`` whole jobs
    are handed to Slurm as well. Simulated devices ignore
    jobs whose run directory is not below *runs_dir*.

    Raises:
        BadRequest: *spec* is invalid, or names GPUs and there are none.
        DeviceTrouble: there is a driver, but it is broken.

    """
    backend = _choose_one(without_beside(spec), host, runs_dir, known)
    beside = set(spec.removeprefix(without_beside(spec)).split(","))
    if DeviceKind.CPU.value in beside and not isinstance(backend, CpuBackend):
        backend = Beside(backend, CpuBackend(host))
    if DeviceKind.SLURM.value in beside and not isinstance(backend, EngineBackend):
        backend = Beside(backend, EngineBackend(host))
    return backend


def _choose_one(spec: str, host: str, runs_dir: Path | None, known: Collection[Device]) -> DeviceBackend:
    if spec == "cpu":
        return CpuBackend(host)
    if spec == DeviceKind.SLURM.value:
        return EngineBackend(host)
    if spec.startswith(PREFIX):
        return SimulatedBackend(host, spec, runs_dir)
    cards = cards_in(spec)
    if spec not in ("auto", "gpu") and cards is None:
        raise BadRequest(
            f"{spec!r} names no devices: write auto, gpu, cpu, slurm, or simulated ones like sim:4x24G; gpu,cpu serves "
            "both, gpu:0,2 only those GPUs"
        )
    gpus = _gpus(host, cards, known)
    if gpus is not None:
        return gpus
    if spec == "auto":
        return CpuBackend(host, no_gpu=_why_none())
    raise BadRequest(f"{host} has no NVIDIA GPU or no driver for it: try nvidia-smi, or write auto, cpu or sim:4x24G")


def find(backend: DeviceBackend, wanted: str) -> Device:
    """Return the device that *wanted* names: an index, a UUID, or a unique prefix of a UUID.

    Raises:
        BadRequest: *wanted* matches no device, or several.
        DeviceTrouble: the driver does not answer.

    """
    devices = backend.devices()
    for device in devices:
        if wanted in (str(device.index), device.uuid):
            return device
    matches = [device for device in devices if wanted and device.uuid.startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    what = "means several devices" if matches else "is no device"
    there = ", ".join(f"{device.index} ({device.uuid})" for device in matches or devices)
    raise BadRequest(f"{wanted!r} {what}: there is {there or 'none'}")


def _gpus(host: str, cards: Collection[int] | None, known: Collection[Device]) -> DeviceBackend | None:
    """Return this host's GPUs, only those on *cards* if that is given; None if it has none."""
    from workers.devices.nvml import NvmlBackend  # noqa: PLC0415 - only a host that may have GPUs needs pynvml

    probed = NvmlBackend.probe()
    if probed is None:
        return None
    backend = Deadlined(probed, host=host, cards=cards, known=known)
    return backend if backend.devices() else None


def _why_none() -> str:
    """Return why this host has no GPU, in the words of its driver."""
    from workers.devices.nvml_calls import Session, driver_facts  # noqa: PLC0415 - as above

    return driver_facts(Session()).words or "the NVIDIA driver lists none"


class Beside:
    """Two backends as one: any, and that of the CPU or of an engine. Each call goes to the one that owns the device."""

    def __init__(self, first: DeviceBackend, last: DeviceBackend) -> None:
        self._first = first
        self._last = last
        self._kind = last.devices()[0].kind

    def devices(self) -> tuple[Device, ...]:
        """Return the devices of the first backend, and then that of the last, which has the next index."""
        first = self._first.devices()
        after = max((device.index for device in first), default=-1) + 1
        return (*first, *(replace(device, index=after + device.index) for device in self._last.devices()))

    def reading(self, device: Device) -> Reading:
        """Return a sample of the memory of *device*."""
        return self._of(device).reading(device)

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the bytes that the processes *pids* use in *reading*. One with ``listed`` unset is the CPU's.

        Nobody asks that of an engine, whose readings list no process.
        """
        is_first = reading.listed or self._kind.is_engine
        return (self._first if is_first else self._last).used_by(reading, pids)

    def health(self, device: Device) -> Health:
        """Return the current health of *device*."""
        return self._of(device).health(device)

    def utilisations(self, device: Device) -> Mapping[int, Utilisation] | None:
        """Return the utilisation of *device* by each process since the last call."""
        return self._of(device).utilisations(device)

    def accounted(self, device: Device, pids: Collection[int]) -> Mapping[int, int]:
        """Return the driver's own peak memory of each process of *pids* on *device*, in bytes."""
        return self._of(device).accounted(device, pids)

    def distance(self, a: Device, b: Device) -> int | None:
        """Return the distance of two devices. That between devices of both backends is unknown (None)."""
        backend = self._of(a)
        return backend.distance(a, b) if backend is self._of(b) else None

    def _of(self, device: Device) -> DeviceBackend:
        return self._last if device.kind is self._kind else self._first


#: What the engine counts as, in bytes. Each of its jobs counts as the least memory, so only the slots limit them.
TOTAL_BYTES = 1024 * GIB


class EngineBackend(Driverless):
    """Slurm as a device of this host."""

    def __init__(self, host: str) -> None:
        self._device = Device(
            uuid=f"{DeviceKind.SLURM}-{host}", index=0, name="Slurm", kind=DeviceKind.SLURM, total_bytes=TOTAL_BYTES
        )

    def devices(self) -> tuple[Device, ...]:
        """Return the one device."""
        return (self._device,)

    def reading(self, device: Device) -> Reading:
        """Return a reading of an empty device: the engine counts its own jobs."""
        return Reading(total_bytes=device.total_bytes, free_bytes=device.total_bytes)

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:  # noqa: ARG002 - the jobs run elsewhere
        """Return 0: the processes of a run here only follow its job."""
        return 0
