"""An engine as one device: it takes whole jobs, and knows no memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.text.units import GIB
from workers.devices.backend import Driverless

if TYPE_CHECKING:
    from collections.abc import Collection

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
