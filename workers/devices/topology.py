"""Distances between the devices of a host, for jobs on several devices."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gpuqueue.model.device import DeviceKind
from workers.devices.backend import DeviceTrouble

if TYPE_CHECKING:
    from gpuqueue.model.device import Device
    from workers.devices.backend import DeviceBackend


def near(backend: DeviceBackend, device: Device) -> dict[str, int]:
    """Return the distance from *device* to each other device, by UUID. Unknown distances are left out.

    The CPU and MIG instances are left out, because no job on several devices uses them. After the first error no
    further distance is queried, because each query may take until its time limit. Distances only improve speed, so a
    partial result is acceptable.
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
