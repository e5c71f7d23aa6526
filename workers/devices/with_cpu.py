"""A backend that combines a host's GPUs with its CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.model.device import Device, DeviceKind, Health, Reading, Utilisation

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from workers.devices.backend import DeviceBackend


class WithCpu:
    """Two backends as one. Each call goes to the backend that owns the device."""

    def __init__(self, gpus: DeviceBackend, cpu: DeviceBackend) -> None:
        self._gpus = gpus
        self._cpu = cpu

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs and then the CPU, which has the next index."""
        gpus = self._gpus.devices()
        after = max((device.index for device in gpus), default=-1) + 1
        return (*gpus, *(replace(device, index=after + device.index) for device in self._cpu.devices()))

    def reading(self, device: Device) -> Reading:
        """Return a sample of the memory of *device*."""
        return self._of(device).reading(device)

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the bytes that the processes *pids* use in *reading*. A reading with ``listed`` unset is the CPU's."""
        return (self._gpus if reading.listed else self._cpu).used_by(reading, pids)

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
        """Return the distance of two devices. The distance between the CPU and a GPU is unknown (None)."""
        backend = self._of(a)
        return backend.distance(a, b) if backend is self._of(b) else None

    def _of(self, device: Device) -> DeviceBackend:
        return self._cpu if device.kind is DeviceKind.CPU else self._gpus
