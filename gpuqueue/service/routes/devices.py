"""Routes of the group ``client.devices``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuqueue.client.devices import cancelled, named, reserved, span
from gpuqueue.model.access import Action, Forbidden
from gpuqueue.model.api import DeviceChoice, ReservationRequest
from gpuqueue.model.calendar import CalendarReservation
from gpuqueue.model.job import JobState
from gpuqueue.model.limits import LimitsInUse
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import Operations, operation

router = Operations("devices")


@operation(router, "devices.list", may=Action.SEE_SITE)
def list_devices(call: Call) -> list[DeviceStatus]:
    """List all devices that workers have announced."""
    return [*call.devices(call.client.devices.list())]


@operation(router, "POST /devices/drain")
def drain(call: Call, body: DeviceChoice) -> tuple[DeviceStatus, ...]:
    """Drain devices, now or at a time to come: they take no new job until they are resumed.

    Until that time a device takes only jobs that are over by then.
    """
    return _changed(
        call, "drain", body, lambda uuids: call.client.devices.drain(*uuids, reason=body.reason, at=body.at)
    )


@operation(router, "POST /devices/resume")
def resume(call: Call, body: DeviceChoice) -> tuple[DeviceStatus, ...]:
    """Resume drained devices."""
    return _changed(call, "resume", body, lambda uuids: call.client.devices.resume(*uuids))


@operation(router, "devices.reservations", may=Action.SEE_SITE)
def list_reservations(call: Call) -> tuple[CalendarReservation, ...]:
    """List the calendar reservations of devices that are not over."""
    return tuple(call.client.devices.reservations())


@operation(router, "POST /reservations", status=201)
def reserve(call: Call, body: ReservationRequest) -> CalendarReservation:
    """Reserve devices for some users: from a time until another, only their jobs start there."""
    users = body.users or (call.account.name,)
    when = f"{body.begins_at.isoformat() if body.begins_at else 'now'} to {body.ends_at.isoformat()}"
    where = f"all of {body.host}" if body.all_here else " ".join(body.devices)
    asked = {"devices": where, "users": " ".join(users), "time": when, "reason": body.reason}
    with call.change(Action.RESERVE, "reserve", detail={name: text for name, text in asked.items() if text}) as entry:
        known = call.client.devices.list()
        meant = named(known, body.devices, host=body.host, all_here=body.all_here, with_hosts=True)
        if users != (call.account.name,) and not call.is_admin:
            raise Forbidden("only an administrator of this site may reserve for others (setting admins)")
        uuids = [each.device.uuid for each in meant]
        most_s = None if call.is_admin else call.connection.settings.reserve_hours * 3600.0
        made = reserved(call.connection, uuids, users, span(body.begins_at, body.ends_at), body.reason, most_s)
        entry.add_detail(reservation=str(made.id))
        return made


@operation(router, "devices.cancel_reservation")
def cancel_reservation(call: Call, reservation: int) -> None:
    """Cancel a calendar reservation of the caller; an admin any."""
    with call.change(Action.SUBMIT, "reserve-cancel", detail={"reservation": str(reservation)}):
        cancelled(call.connection, reservation, None if call.is_admin else call.account.name)


def _changed(
    call: Call,
    name: str,
    chosen: DeviceChoice,
    change: Callable[[Sequence[str]], Sequence[DeviceStatus]],
) -> tuple[DeviceStatus, ...]:
    """Return the devices after *change*, which the audit log has as *name*, with the state of each before and after."""
    asked = {
        "devices": f"all of {chosen.host}" if chosen.all_here else " ".join(chosen.devices),
        **({"reason": chosen.reason} if chosen.reason else {}),
        **({"at": chosen.at.isoformat()} if chosen.at is not None else {}),
    }
    with call.change(Action.DRAIN, name, detail=asked) as entry:
        # A bare index means a device of the host that the caller names.
        known = call.client.devices.list()
        meant = named(known, chosen.devices, host=chosen.host, all_here=chosen.all_here, with_hosts=True)
        before = {each.device.uuid: _state(each) for each in meant}
        after = change([*before])
        entry.add_detail(
            **{f"{each.host}:{each.device.index}": f"{before[each.device.uuid]} -> {_state(each)}" for each in after}
        )
        return call.devices(after)


def _state(device: DeviceStatus) -> str:
    if device.drained is not None:
        return f"drained ({device.drained})"
    return "open" if device.ends_at is None else f"open until {device.ends_at:%Y-%m-%d %H:%M} UTC"


@operation(router, "devices.lost")
def lose_host(call: Call, host: str) -> dict[int, JobState]:
    """Declare a silent host lost: its runs end as lost, and their jobs are queued again."""
    with call.change(Action.LOSE_HOST, "lost", detail={"host": host}) as change:
        lost = dict(call.client.devices.lost(host))
        change.concerns(*map(str, lost))
        change.add_detail(became=" ".join(f"{job_id}={state}" for job_id, state in lost.items()))
        return lost


@operation(router, "devices.limits", may=Action.SEE_SITE)
def limits(call: Call) -> LimitsInUse:
    """Return the limits of users, groups and pools, and their use."""
    return call.client.devices.limits()
