"""Routes of the group ``client.devices``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.client.device_lookup import named
from gpuqueue.model.access import Action
from gpuqueue.model.api import DeviceChoice
from gpuqueue.model.job import JobState
from gpuqueue.model.limits import LimitsInUse
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import Operations, route
from gpuqueue.service.site import body_of, site_of

router = Operations("devices")


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

    def change(call: Call, uuids: Sequence[str]) -> Sequence[DeviceStatus]:
        return call.client.devices.drain(*uuids, reason=chosen.reason)

    return await site_of(request).answer(request, lambda call: _changed(call, "drain", chosen, change))


@route(router, "POST", "/devices/resume", answer=tuple[DeviceStatus, ...], body=DeviceChoice)
async def resume(request: Request) -> Response:
    """Resume drained devices."""
    chosen = await body_of(request, DeviceChoice)

    def change(call: Call, uuids: Sequence[str]) -> Sequence[DeviceStatus]:
        return call.client.devices.resume(*uuids)

    return await site_of(request).answer(request, lambda call: _changed(call, "resume", chosen, change))


def _changed(
    call: Call,
    name: str,
    chosen: DeviceChoice,
    change: Callable[[Call, Sequence[str]], Sequence[DeviceStatus]],
) -> Sequence[DeviceStatus]:
    """Return the devices after *change*, which the audit log has as *name*, with the state of each before and after."""
    asked = {
        "devices": f"all of {chosen.host}" if chosen.all_here else " ".join(chosen.devices),
        **({"reason": chosen.reason} if chosen.reason else {}),
    }
    with call.change(Action.DRAIN, name, detail=asked) as entry:
        # A bare index means a device of the host that the caller names.
        known = call.client.devices.list()
        meant = named(known, chosen.devices, host=chosen.host, all_here=chosen.all_here)
        before = {each.device.uuid: _state(each) for each in meant}
        after = change(call, [*before])
        entry.add_detail(
            **{f"{each.host}:{each.device.index}": f"{before[each.device.uuid]} -> {_state(each)}" for each in after}
        )
        return call.devices(after)


def _state(device: DeviceStatus) -> str:
    return "open" if device.drained is None else f"drained ({device.drained})"


@route(router, "POST", "/hosts/{host}/lost", answer=dict[int, JobState])
async def lose_host(request: Request, host: str) -> Response:
    """Declare a silent host lost: its runs end as lost, and their jobs are queued again."""

    def work(call: Call) -> dict[int, JobState]:
        with call.change(Action.LOSE_HOST, "lost", detail={"host": host}) as change:
            lost = dict(call.client.devices.lost(host))
            change.concerns(*map(str, lost))
            change.add_detail(became=" ".join(f"{job_id}={state}" for job_id, state in lost.items()))
            return lost

    return await site_of(request).answer(request, work)


@route(router, "GET", "/limits", answer=LimitsInUse)
async def limits(request: Request) -> Response:
    """Return the limits of users, groups and pools, and their use."""

    def work(call: Call) -> LimitsInUse:
        call.must(Action.SEE_SITE)
        return call.client.devices.limits()

    return await site_of(request).answer(request, work)
