"""Devices as a table, with lines below it for what is unusual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple, TypeAlias

from gpuqueue.cli.output import render
from gpuqueue.cli.output.render import hanging, table_of, terminal_width
from gpuqueue.cli.output.silent_hosts import silent_lines
from gpuqueue.model.calendar import CalendarReservation, together
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.lease import SILENT_HEARTBEATS, DeviceStatus
from gpuqueue.settings.settings import Settings
from gpuqueue.text.sanitize import cells, plain, short
from gpuqueue.text.units import format_bytes, format_duration
from gpuqueue.words import values

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
    """Yield a line for each drain of a device, also a planned one: its time, user and reason."""
    for each in found:
        for drain in (*each.drains, *each.planned_drains):
            word, when = ("ends", "at") if drain in each.planned_drains else ("drained", "since")
            since = f" {when} {values.when(drain.since)}" if drain.since else ""
            by = f" by {plain(drain.by)}" if drain.by else ""
            why = plain(drain.why) or ("its host's time is over then" if drain.origin is DrainOrigin.UNTIL else "")
            yield f"{word}: {each.host} device {each.device.index}{since}{by}{why and f': {why}'}"


def calendar_lines(found: Sequence[DeviceStatus], heartbeat_s: float) -> Iterator[str]:
    """Yield a line for each calendar reservation: its devices, users and times, and which of them cannot be used."""
    by_uuid = {each.device.uuid: each for each in found}
    for each in together(reservation for status in found for reservation in status.calendar):
        devices = [by_uuid[uuid] for uuid in each.devices]
        where = ", ".join(map(_named, devices))
        why = f": {plain(each.why)}" if each.why else ""
        span = f"from {values.when(each.begins_at)} until {values.when(each.ends_at)}"
        closed = unusable(each, devices, heartbeat_s)
        yield f"reservation {each.id}: {where} for {values.users_of(each)} {span}{why}{closed and f'; {closed}'}"


def unusable(reservation: CalendarReservation, devices: Iterable[DeviceStatus], heartbeat_s: float) -> str:
    """Return in words which *devices* of a reservation take no jobs now, or not until its end; empty for none."""
    words = []
    for device in devices:
        closed = not_ready(device, heartbeat_s)
        if closed is None and device.ends_at is not None and device.ends_at < reservation.ends_at:
            closed = values.end_in_words(device)
        if closed:
            words.append(f"{_named(device)}: {closed}")
    return "; ".join(words)


def _named(device: DeviceStatus) -> str:
    return f"{plain(device.host)} {values.device_label(device.device)}"


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
            since = f" since {values.when(each.reservation.since)}" if each.reservation.since else ""
            where = f"{plain(each.host)} device {values.device_label(each.device)}"
            name = called.get(each.reservation.job_id, str(each.reservation.job_id))
            yield f"reserved: {where}{since} for job {name}, see gpuqueue why {name}"


def condition(device: DeviceStatus, heartbeat_s: float, called: Mapping[int, str] | None = None) -> str:
    """Return in a few words whether a device takes jobs; *called* maps job ids to labels."""
    closed = not_ready(device, heartbeat_s)
    if closed is not None:
        return closed
    reservation, words = device.reservation, [values.end_in_words(device), values.reserved_in_words(device)]
    if reservation is not None:
        words.append(f"reserved for job {(called or {}).get(reservation.job_id, str(reservation.job_id))}")
    return ", ".join(filter(None, words)) or "ready"


def not_ready(device: DeviceStatus, heartbeat_s: float) -> str | None:
    """Return in a few words why a device takes no jobs now, None if it may."""
    if device.drains:
        return f"drained {plain(str(device.drains[0]))}"
    if device.seen_s_ago > SILENT_HEARTBEATS * heartbeat_s:
        return f"silent for {device.seen_s_ago:.0f}s"
    return None if device.trouble is None else f"{CLOSED}{plain(device.trouble)}"


#: Returns the names of those jobs, ids, that are members of arrays.
Labels = Callable[[Iterable[int]], Mapping[int, str]]


def device_rows(found: Sequence[DeviceStatus], settings: Settings, labels: Labels) -> str:
    """Return the table of devices and the lines below it; *labels* gives the labels of their jobs."""
    called, width = labels(jobs_on(found)), terminal_width()
    table = device_table(found, settings.heartbeat_s, width, called)
    lines = (
        *closed_lines(found, settings.heartbeat_s, table),
        *drain_lines(found),
        *calendar_lines(found, settings.heartbeat_s),
        *reserved_lines(found, called),
        *silent_lines(found, settings),
        *error_lines(found),
        *left_out_lines(found),
        *refusal_lines(found),
        *environment_lines(found),
        *filter(None, map(values.without_gpu, found)),
        *(f"{blind} ({values.PID_HOST})" for blind in map(values.without_processes, found) if blind is not None),
    )
    return "\n".join((table, *(each for line in lines for each in hanging(line, width))))


def external_process_lines(found: Sequence[DeviceStatus], now: datetime | None = None) -> Iterator[str]:
    """Yield a line for each external process, with its user and its age at *now*, by default the present.

    The process of a job that was given another device is named as that.
    """
    now = datetime.now(timezone.utc) if now is None else now
    for each in found:
        for external in each.external_processes:
            who = f"{plain(external.user or 'somebody')}, pid {external.pid}"
            if external.started_at is not None:
                who += f", for {format_duration(max(0.0, (now - external.started_at).total_seconds()))}"
            what = short(external.command or "cannot be seen", 60)
            held = "unknown" if external.held_bytes is None else format_bytes(external.held_bytes)
            if external.freed_bytes:
                held += f" now, {format_bytes(external.counted_bytes)} counted"
            owner = "external process"
            if external.job_id is not None:
                owner = f"job {external.job_id}, which was given another device,"
            yield f"{owner} on {plain(each.host)} device {values.device_label(each.device)}: {held}  {who}  {what}"


def environment_lines(found: Sequence[DeviceStatus]) -> Iterator[str]:
    """Yield a line for each host that has environments, with their names for ``submit --environment``."""
    for host, names in {each.host: each.environments for each in found}.items():
        if names:
            yield f"environments of {plain(host)}: {', '.join(map(plain, names))}"


def error_lines(found: Iterable[DeviceStatus]) -> Iterator[str]:
    """Yield a line for the memory errors of each device, and one for its last Xid error."""
    for each in found:
        for errors in values.device_errors(each):
            yield f"{plain(each.host)} device {values.device_label(each.device)}: {errors}"


def left_out_lines(found: Iterable[DeviceStatus]) -> Iterator[str]:
    """Yield a line for each host that serves only some of its GPUs. Its workers never ask the driver for the others."""
    for host, only in {each.host: each.only for each in found if each.only is not None}.items():
        yield f"{plain(host)} serves only {plain(only)}: gpuqueue doctor lists its other GPUs, and whether they answer"


def refusal_lines(found: Sequence[DeviceStatus]) -> Iterator[str]:
    """Yield a line for each host that could not start the last jobs that it claimed."""
    hosts = {each.host: each.refusals for each in found if each.refusals is not None and each.refusals.are_many}
    for host, refusals in hosts.items():
        yield f"host {plain(host)} could not start {refusals.jobs} jobs in a row, the last one: {plain(refusals.why)}"


class Row(NamedTuple):
    """One line: a device, the interval of its worker's heartbeats in seconds, and the known labels of its jobs."""

    status: DeviceStatus
    heartbeat_s: float
    called: Mapping[int, str] = {}

    @property
    def jobs(self) -> list[str]:
        """Return the labels of the jobs on the device."""
        return [self.called.get(job_id, str(job_id)) for job_id in self.status.jobs]


#: One column of the table.
Column: TypeAlias = render.Column[Row]


def device_table(
    found: Sequence[DeviceStatus], heartbeat_s: float, width: int | None = None, called: Mapping[int, str] | None = None
) -> str:
    """Return the devices as a table *width* columns wide; None: for a pipe. *called* maps job ids to labels."""
    return table_of(COLUMNS, [Row(each, heartbeat_s, called or {}) for each in found], width)


def few(names: Sequence[str], width: int, between: str = " ") -> str:
    """Return the *names* of jobs in *width* columns.

    The result is the first form that fits: all names, members of arrays as ranges, the first names and the number of
    the others, or only the number.
    """
    if not names:
        return "-"
    ranges = _ranges(names)
    for words in (between.join(names), between.join(ranges)):
        if cells(words) <= width:
            return words
    for count in range(len(names) - 1, 0, -1):
        words = f"{between.join(names[:count])} +{len(names) - count}"
        if cells(words) <= width:
            return words
    return f"{len(names)}"


def _ranges(names: Sequence[str]) -> list[str]:
    """Return *names* with consecutive members of an array as a range: ``72_0-6`` for seven of them."""
    found: list[tuple[str, int, int]] = []
    for name in names:
        array, _, index = name.rpartition("_")
        place = int(index)
        if found and array and found[-1][0] == array and found[-1][2] == place - 1:
            found[-1] = (array, found[-1][1], place)
        else:
            found.append((array, place, place))
    return [
        f"{array}_{first}-{last}" if first != last else f"{array}_{first}" if array else f"{first}"
        for array, first, last in found
    ]


NAME = render.Column[Row](
    head="NAME", cell=lambda row, width: render.model_of(row.status.device, min(width, 32)), least=11, keep=4, narrows=1
)
TOTAL = render.Column[Row](
    head="TOTAL", cell=lambda row, _: format_bytes(row.status.device.total_bytes or None), right=True, keep=2
)
FREE = render.Column[Row](head="FREE", cell=lambda row, _: format_bytes(row.status.free_bytes), right=True)
#: Narrowed first, because a line below the table has what is cut.
STATE = render.Column[Row](
    head="STATE", cell=lambda row, _: condition(row.status, row.heartbeat_s, row.called), least=28, narrows=0
)
#: The columns from left to right.
COLUMNS: tuple[Column, ...] = (
    render.Column(head="HOST", cell=lambda row, _: plain(row.status.host), least=8, narrows=2),
    render.Column(head="DEVICE", cell=lambda row, _: values.device_label(row.status.device), right=True),
    NAME,
    TOTAL,
    render.Column(head="ALLOCATED", cell=lambda row, _: format_bytes(row.status.allocated_bytes), right=True, keep=5),
    render.Column(head="EXTERNAL", cell=lambda row, _: format_bytes(row.status.external_bytes), right=True, keep=3),
    FREE,
    render.Column(head="SLOTS", cell=lambda row, _: f"{len(row.status.jobs)}/{row.status.slots}", right=True, keep=1),
    render.Column(head="JOBS", cell=lambda row, width: few(row.jobs, width), least=8, narrows=3),
    STATE,
)
