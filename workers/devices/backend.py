"""What every kind of device must be able to tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from gpuqueue.errors import GpuQueueError
from gpuqueue.model.device import Device, Health, Reading


class DeviceTrouble(GpuQueueError):
    """A device or its driver cannot be asked right now; the message says why. Never means zero bytes."""


class DeviceBackend(Protocol):
    """The devices of one host. tests/contract/test_devices.py holds each implementation to this."""

    def devices(self) -> tuple[Device, ...]:
        """Return this host's devices in the order of their index.

        Raises:
            DeviceTrouble: the driver does not answer.

        """

    def reading(self, device: Device) -> Reading:
        """Return a look at *device* as it is now.

        Raises:
            DeviceTrouble: the device does not answer, or will not tell its free memory.

        """

    def used_by(self, reading: Reading, pids: Collection[int]) -> int | None:
        """Return the bytes that the processes *pids* hold in *reading*.

        None when one of them is on the device and the driver will not say how much it holds.
        """

    def health(self, device: Device) -> Health:
        """Return how *device* is now; what it will not tell is None, one field at a time.

        Raises:
            DeviceTrouble: the device does not answer at all.

        """

    def accounted(self, device: Device, pids: Collection[int]) -> Mapping[int, int]:
        """Return the most that each process of *pids*, ended or not, ever held on *device*, in bytes.

        Only those of which the driver itself kept a maximum: mostly none, because an administrator must have
        switched that on.

        Raises:
            DeviceTrouble: the device does not answer at all.

        """

    def distance(self, a: Device, b: Device) -> int | None:
        """Return how far two devices are apart, 0 for the same board or an NVLink between them, None when unknown.

        The steps are NVML's: 10 one PCIe switch, 20 several, 30 one host bridge, 40 one NUMA node, 50 the system.

        Raises:
            DeviceTrouble: one of the devices does not answer at all.

        """


class Driverless:
    """What devices without a driver answer: their memory is all that is known of them."""

    def health(self, device: Device) -> Health:  # noqa: ARG002 - nothing is known of it
        """Return that nothing is known."""
        return Health()

    def accounted(self, device: Device, pids: Collection[int]) -> Mapping[int, int]:  # noqa: ARG002 - nobody kept it
        """Return that nothing was kept."""
        return {}

    def distance(self, a: Device, b: Device) -> int | None:  # noqa: ARG002 - nothing is known of it
        """Return that nothing is known."""
        return None
