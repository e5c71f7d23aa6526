"""The protocol that every kind of device implements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from gpuqueue.errors import GpuQueueError
from gpuqueue.model.device import Device, Health, Reading, Utilisation


class DeviceTrouble(GpuQueueError):
    """A device or its driver does not answer now; the message says why. It must not be read as zero bytes used."""


class DeviceCalls(Protocol):
    """What one can ask about a device."""

    def reading(self, device: Device) -> Reading:
        """Return a sample of the memory of *device*.

        Raises:
            DeviceTrouble: the device does not answer, or does not report its free memory.

        """

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the bytes that the processes *pids* use in *reading*.

        Returns None if one of them is on the device and the driver does not report its bytes.
        """

    def health(self, device: Device) -> Health:
        """Return the current health of *device*; each field that the device does not report is None.

        Raises:
            DeviceTrouble: the device does not answer at all.

        """

    def utilisations(self, device: Device) -> Mapping[int, Utilisation] | None:
        """Return the utilisation of *device* by each process since the last call, by pid.

        A process that did not use the device is left out. Returns None if the driver does not report it by process.

        Raises:
            DeviceTrouble: the device does not answer at all.

        """

    def accounted(self, device: Device, pids: Collection[int]) -> Mapping[int, int]:
        """Return the driver's own peak memory of each process of *pids* on *device*, in bytes.

        The processes may have ended. A process without a recorded peak is left out. The mapping is usually empty,
        because an administrator must enable the driver's accounting.

        Raises:
            DeviceTrouble: the device does not answer at all.

        """

    def distance(self, a: Device, b: Device) -> int | None:
        """Return the distance of two devices: 0 for the same board or a direct NVLink, None if it is unknown.

        The other values are NVML's topology levels: 10 for one PCIe switch, 20 for several switches, 30 for one host
        bridge, 40 for one NUMA node, 50 for the whole system.

        Raises:
            DeviceTrouble: one of the devices does not answer at all.

        """


class DeviceBackend(DeviceCalls, Protocol):
    """The devices of one host. tests/contract/test_devices.py tests each implementation against this protocol."""

    def devices(self) -> tuple[Device, ...]:
        """Return this host's devices in the order of their index.

        Raises:
            DeviceTrouble: the driver does not answer.

        """


class CardBackend(DeviceCalls, Protocol):
    """A driver whose cards are asked one by one."""

    def count(self) -> int:
        """Return the number of cards."""

    def card(self, index: int) -> tuple[Device, ...]:
        """Return the devices of the card at *index*: the card itself, or its parts.

        Raises:
            DeviceTrouble: the card does not answer.

        """


class Driverless:
    """The answers of devices without a driver, for which only the memory is known."""

    def health(self, device: Device) -> Health:  # noqa: ARG002 - the same for every device
        """Return a health whose fields are all None."""
        return Health()

    def utilisations(self, device: Device) -> Mapping[int, Utilisation] | None:  # noqa: ARG002 - no driver
        """Return None: nobody reports it."""
        return None

    def accounted(self, device: Device, pids: Collection[int]) -> Mapping[int, int]:  # noqa: ARG002 - no accounting
        """Return an empty mapping."""
        return {}

    def distance(self, a: Device, b: Device) -> int | None:  # noqa: ARG002 - no topology
        """Return None: the distance is unknown."""
        return None
