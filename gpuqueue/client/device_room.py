"""How much memory the devices of the site can give a job that is alone there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.errors import Unreachable
from gpuqueue.model.device import DeviceKind, suits
from gpuqueue.model.placement import fits_model

if TYPE_CHECKING:
    from gpuqueue.client.connection import Connection
    from gpuqueue.model.job_spec import JobSpec
    from gpuqueue.queue.lease import DeviceStatus


def most_for(connection: Connection, spec: JobSpec) -> int | None:
    """Return the most bytes that each device of a job like *spec* can give, on the host that can give most.

    External processes do not count, since they may end. What nobody holds is the driver's own and counts. None if no
    device is known that the job may use, or if the store does not answer. A CPU has no device memory.

    ``memory_retry.lua`` has the same rule.
    """
    try:
        devices = connection.queue.devices.all()
    except Unreachable:
        return None
    gpus_known = any(each.device.kind is not DeviceKind.CPU for each in devices)
    alike: dict[tuple[str, DeviceKind], list[int]] = {}  # all devices of a job are on one host and of one kind
    for each in devices:
        if each.device.kind is not DeviceKind.CPU and _may_use(spec, each, gpus_known=gpus_known):
            alike.setdefault((each.host, each.device.kind), []).append(_room_bytes(each))
    enough = [sorted(rooms, reverse=True)[spec.gpus - 1] for rooms in alike.values() if len(rooms) >= spec.gpus]
    return max(enough, default=None)


def _may_use(spec: JobSpec, status: DeviceStatus, *, gpus_known: bool) -> bool:
    wanted, device = spec.placement, status.device
    return (
        spec.pool in {"", status.pool}
        and suits(spec.device, device.kind, gpus_known=gpus_known)
        and (not wanted.devices or device.uuid in wanted.devices)
        and (not wanted.models or any(fits_model(model, device.name) for model in wanted.models))
        and (spec.gpus == 1 or device.mig_parent is None)
    )


def _room_bytes(status: DeviceStatus) -> int:
    of_driver = status.external_bytes if status.driver_bytes is None else status.driver_bytes
    return status.device.total_bytes - status.headroom_bytes - (of_driver or 0)
