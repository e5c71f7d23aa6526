"""What the checks of the driver, of the devices and of the jobs' Python take: this host, with what was read of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import Device, DeviceKind, Health, Reading, names_gpus
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timed_call import CallFailed, TimedCall
from workers.devices.backend import DeviceBackend, DeviceTrouble
from workers.devices.nvml_calls import DriverFacts
from workers.devices.select import chosen

#: How long a device may take to answer, in seconds.
DEVICE_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One device with its memory and its health, or the reason why it gives neither."""

    device: Device
    reading: Reading | None = None
    health: Health | None = None
    trouble: str | None = None

    @property
    def name(self) -> str:
        """Return the device's name for users."""
        return f"device {self.device.index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Devices:
    """The devices to serve, or the reason why there are none."""

    seen: tuple[Seen, ...] = ()
    trouble: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """This host. ``devices`` waits for what was read of them, and raises CallFailed if that takes too long."""

    settings: Settings
    environ: Mapping[str, str]
    driver: DriverFacts
    devices: Callable[[], Devices] = Devices
    #: Where the files of the system are.
    root: Path = Path("/")

    @property
    def wants_gpus(self) -> bool:
        """Return whether the settings ask to serve GPUs if there are any."""
        return names_gpus(self.settings.devices)

    @property
    def gpus(self) -> list[Seen]:
        """Return the devices that are GPUs."""
        return [each for each in self.devices().seen if each.device.kind is DeviceKind.GPU]


def read_devices(settings: Settings) -> Devices:
    """Read all devices at the same time, so that a slow device does not delay the others."""
    try:
        backend = chosen(settings)
        calls = [(device, TimedCall(partial(_ask, backend, device), DEVICE_S)) for device in backend.devices()]
    except (BadRequest, DeviceTrouble) as error:
        return Devices(trouble=str(error))
    return Devices(seen=tuple(_seen(device, call) for device, call in calls))


def _ask(backend: DeviceBackend, device: Device) -> tuple[Reading, Health]:
    return backend.reading(device), backend.health(device)


def _seen(device: Device, call: TimedCall[tuple[Reading, Health]]) -> Seen:
    try:
        reading, health = call.result()
    except CallFailed as why:
        return Seen(device=device, trouble=str(why))
    return Seen(device=device, reading=reading, health=health)
