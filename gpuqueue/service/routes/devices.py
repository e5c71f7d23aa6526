"""Routes of the group ``client.devices``."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from gpuqueue.client.device_lookup import named
from gpuqueue.model.access import Action
from gpuqueue.model.api import DeviceChoice
from gpuqueue.model.job import JobState
from gpuqueue.model.limits import LimitsInUse
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import route
from gpuqueue.service.site import body_of, site_of

router = APIRouter(tags=["devices"])


@route(router, "GET", "/devices", answer=list[DeviceStatus])
async def list_devices(request: Request) -> Response:
    """List all devices that workers have announced."""

    def work(call: Call) -> Sequence[DeviceStatus]:
        call.must(Action.SEE_SITE)
        return call.devices(call.client.devices.list())

    return await site_of(request).answer(request, work)


@route(router, "POST", "/devices/drain", answer=tuple[DeviceStatus, ...], body=DeviceChoice)
async def drain(request: Request) -> Response:
    """Drain devices: they take no new job until they are resumed."""
    chosen = await body_of(request, DeviceChoice)

    def work(call: Call) -> Sequence[DeviceStatus]:
        with call.change(Action.DRAIN, "drain"):
            return call.devices(call.client.devices.drain(*_uuids(call, chosen), reason=chosen.reason))

    return await site_of(request).answer(request, work)


@route(router, "POST", "/devices/resume", answer=tuple[DeviceStatus, ...], body=DeviceChoice)
async def resume(request: Request) -> Response:
    """Resume drained devices."""
    chosen = await body_of(request, DeviceChoice)

    def work(call: Call) -> Sequence[DeviceStatus]:
        with call.change(Action.DRAIN, "resume"):
            return call.devices(call.client.devices.resume(*_uuids(call, chosen)))

    return await site_of(request).answer(request, work)


def _uuids(call: Call, chosen: DeviceChoice) -> list[str]:
    """Return the UUIDs of the chosen devices. A bare index means a device of the host that the caller names."""
    found = named(call.client.devices.list(), chosen.devices, host=chosen.host, all_here=chosen.all_here)
    return [each.device.uuid for each in found]


@route(router, "POST", "/hosts/{host}/lost", answer=dict[int, JobState])
async def lose_host(request: Request, host: str) -> Response:
    """Declare a silent host lost: its runs end as lost, and their jobs are queued again."""

    def work(call: Call) -> dict[int, JobState]:
        with call.change(Action.LOSE_HOST, "lost"):
            return dict(call.client.devices.lost(host))

    return await site_of(request).answer(request, work)


@route(router, "GET", "/limits", answer=LimitsInUse)
async def limits(request: Request) -> Response:
    """Return the limits of users, groups and pools, and their use."""

    def work(call: Call) -> LimitsInUse:
        call.must(Action.SEE_SITE)
        return call.client.devices.limits()

    return await site_of(request).answer(request, work)
