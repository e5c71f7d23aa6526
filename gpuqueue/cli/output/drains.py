"""Drained and reserved devices as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuqueue.queue.lease import SILENT_HEARTBEATS, DeviceStatus
from gpuqueue.text.sanitize import plain
from gpuqueue.words import times, values

#: Begins the condition of a device whose worker gives it no job now.
CLOSED = "closed: "


def jobs_on(found: Iterable[DeviceStatus]) -> Iterator[int]:
    """Yield the jobs that hold the devices *found*, and those that have them reserved."""
    for each in found:
        yield from each.jobs
        if each.reservation is not None:
            yield each.reservation.job_id


def going_on(jobs: Sequence[int], called: Mapping[int, str]) -> str:
    """Return a phrase about the jobs that go on on a drained device; empty if there are none."""
    names = ", ".join(called.get(each, str(each)) for each in jobs)
    return (f"; jobs {names} go on" if len(jobs) > 1 else f"; job {names} goes on") if jobs else ""


def device_name(each: DeviceStatus) -> str:
    """Return the name of a device in a message."""
    return f"device {each.device.index} of {each.host} ({plain(each.device.uuid)})"


def drain_lines(found: Sequence[DeviceStatus]) -> Iterator[str]:
    """Yield a line for each drain of a device: its time, user and reason."""
    for each in found:
        for drain in each.drains:
            since = f" since {times.when(drain.at)}" if drain.at else ""
            by = f" by {plain(drain.by)}" if drain.by else ""
            why = f": {plain(drain.why)}" if drain.why else ""
            yield f"drained: {each.host} device {each.device.index}{since}{by}{why}"


def closed_lines(found: Sequence[DeviceStatus], heartbeat_s: float, table: str) -> Iterator[str]:
    """Yield a line for the closed devices of each host and reason, if the *table* of devices has cut the reason."""
    closed: dict[tuple[str, str], list[str]] = {}
    for each in found:
        words = condition(each, heartbeat_s)
        if words.startswith(CLOSED) and words not in table:
            closed.setdefault((each.host, words.removeprefix(CLOSED)), []).append(values.device_label(each.device))
    for (host, why), labels in closed.items():
        yield f"{CLOSED}{plain(host)} device{'s' if len(labels) > 1 else ''} {', '.join(labels)}: {why}"


def reserved_lines(found: Sequence[DeviceStatus], called: Mapping[int, str]) -> Iterator[str]:
    """Yield a line for each reserved device: its job and the time of the reservation; *called* as in `condition`."""
    for each in found:
        if each.reservation is not None:
            since = f" since {times.when(each.reservation.since)}" if each.reservation.since else ""
            where = f"{plain(each.host)} device {values.device_label(each.device)}"
            name = called.get(each.reservation.job_id, str(each.reservation.job_id))
            yield f"reserved: {where}{since} for job {name}, see gpuqueue why {name}"


def condition(device: DeviceStatus, heartbeat_s: float, called: Mapping[int, str] | None = None) -> str:
    """Return in a few words whether a device takes jobs; *called* maps job ids to labels."""
    if device.drains:
        return f"drained {plain(str(device.drains[0]))}"
    if device.seen_s_ago > SILENT_HEARTBEATS * heartbeat_s:
        return f"silent for {device.seen_s_ago:.0f}s"
    if device.trouble is not None:
        return f"{CLOSED}{plain(device.trouble)}"
    reservation = device.reservation
    return (
        "ready"
        if reservation is None
        else f"reserved for job {(called or {}).get(reservation.job_id, str(reservation.job_id))}"
    )
