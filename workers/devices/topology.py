"""How far a device is from the others of its host, for jobs on several."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gpuqueue.model.device import DeviceKind
from workers.devices.backend import DeviceTrouble

if TYPE_CHECKING:
    from gpuqueue.model.device import Device
    from workers.devices.backend import DeviceBackend


def near(backend: DeviceBackend, device: Device) -> dict[str, int]:
    """Return how far it is from *device* to each other one by UUID; what the driver will not tell is left out.

    Of the CPU and of MIG instances nothing is told: they are in no job on several devices. After trouble nobody is
    asked any more, since each question may take until its deadline: it is a matter of speed, and no job waits for it.
    """
    found: dict[str, int] = {}
    if device.kind is DeviceKind.CPU or device.mig_parent is not None:
        return found
    with contextlib.suppress(DeviceTrouble):
        for other in backend.devices():
            if other.uuid != device.uuid and other.kind is device.kind and other.mig_parent is None:
                steps = backend.distance(device, other)
                if steps is not None:
                    found[other.uuid] = steps
    return found
