"""The tables of a snapshot, for the screen and for plain text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from enum import Enum

from gpuqueue.cli.output import devices, queue_table, render
from gpuqueue.cli.output.arrays import labels
from gpuqueue.cli.output.devices import Column, Row, closed_lines
from gpuqueue.cli.output.queue_table import Line
from gpuqueue.cli.output.render import hanging, table_of
from gpuqueue.client import Client
from gpuqueue.errors import JobNotFound
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.history_query import Sort
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.progress import Progress
from gpuqueue.model.run import Listing, RunDevice
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.text.sanitize import plain, short
from gpuqueue.text.units import format_bytes
from gpuqueue.words import values

BAR_WIDTH = 20

#: Marks of a memory bar, which differ without colours too.
HELD, ALLOCATED, EXTERNAL_PROCESSES, HEADROOM, FREE = "█", "▒", "▚", "╌", "·"
LEGEND = f"{HELD} held  {ALLOCATED} allocated  {EXTERNAL_PROCESSES} external  {HEADROOM} headroom  {FREE} free"

#: What the screen says while no device is known, before what to do.
NO_WORKER = "no worker has announced a device"
#: Most jobs in a snapshot, beside those that hold a device.
MOST_JOBS = 500
#: Number of ended jobs in a snapshot that has them.
ENDED_JOBS = 50


class Order(str, Enum):
    """Sort orders of the jobs; a key press switches to the next one."""

    ID = "id"
    MEMORY = "memory"
    TIME = "time"
    USER = "user"

    @property
    def next(self) -> Order:
        """Return the order after this one."""
        every = list(Order)
        return every[(every.index(self) + 1) % len(every)]


def memory_parts(device: DeviceStatus) -> list[tuple[str, int]]:
    """Return the parts of a device's memory as (mark, bytes), from left to right; their sum is its total."""
    total = device.device.total_bytes
    parts, left = [], total
    held = sum(each.observed_bytes for each in device.holdings)
    for mark, size_bytes in (
        (HELD, held),
        (ALLOCATED, device.allocated_bytes - held),
        (EXTERNAL_PROCESSES, total if device.external_bytes is None else device.external_bytes),
        (HEADROOM, device.headroom_bytes),
    ):
        taken = max(0, min(size_bytes, left))  # external processes may use allocated memory
        parts.append((mark, taken))
        left -= taken
    return [*parts, (FREE, left)]


def bar(parts: Sequence[tuple[str, int]], width: int = BAR_WIDTH) -> str:
    """Return a bar of *width* cells, shared by the largest remainder method.

    Parts smaller than a cell get one before other parts are rounded up.
    """
    whole = sum(size_bytes for _, size_bytes in parts)
    if not whole:
        return " " * width
    exact = [(mark, size_bytes * width / whole) for mark, size_bytes in parts]
    cells = [int(share) for _, share in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: (0 < exact[i][1] < 1, exact[i][1] - cells[i]), reverse=True)
    for i in by_rest[: width - sum(cells)]:
        cells[i] += 1
    return "".join(mark * count for (mark, _), count in zip(exact, cells, strict=True))


def device_rows(snapshot: Snapshot, heartbeat_s: float) -> list[Row]:
    """Return a row for each device, with the labels of its jobs."""
    called = {job.id: job.label for job in snapshot.jobs}
    return [Row(each, heartbeat_s, called) for each in snapshot.devices]


def _figure(figure: float | None, unit: str) -> str:
    return "-" if figure is None else f"{figure:.0f} {unit}"


#: Columns of the table of devices, from left to right.
DEVICE_COLUMNS: tuple[Column, ...] = (
    Column(
        head="DEVICE",
        cell=lambda row, width: render.place(
            plain(f"{row.status.host}:{values.device_label(row.status.device)}"), width
        ),
        least=11,
        narrows=2,
    ),
    replace(devices.NAME, keep=1, narrows=-1),
    Column(
        head="MEMORY", cell=lambda row, width: bar(memory_parts(row.status), min(width, BAR_WIDTH)), least=8, narrows=0
    ),
    Column(
        head="ALLOCATED",
        cell=lambda row, _: f"{format_bytes(row.status.allocated_bytes)}/{format_bytes(row.status.device.total_bytes)}",
        right=True,
        keep=5,
    ),
    replace(devices.FREE, keep=2),
    Column(head="UTIL", cell=lambda row, _: values.percent(row.status.utilisation), right=True, keep=6),
    Column(head="TEMP", cell=lambda row, _: _figure(row.status.temperature_c, "°C"), right=True, keep=4),
    Column(head="POWER", cell=lambda row, _: _figure(row.status.power_w, "W"), right=True, keep=3),
    Column(head="JOBS", cell=lambda row, width: devices.few(row.jobs, width, ","), least=8, narrows=3),
    #: Narrowed last below `enough`, since it shows what is wrong.
    replace(devices.STATE, enough=36, narrows=4),
)


#: Heads of the columns that only some drivers fill.
REPORTED = ("UTIL", "TEMP", "POWER")


def device_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns for a screen: without those that no driver of these devices fills."""
    return [
        column
        for column in DEVICE_COLUMNS
        if column.head not in REPORTED or any(column.cell(row, BAR_WIDTH) != "-" for row in rows)
    ]


def ordered(snapshot: Snapshot, order: Order) -> list[Job]:
    """Return the jobs in *order*, active jobs before waiting ones."""
    keys: dict[Order, Callable[[Job], object]] = {
        Order.ID: lambda job: job.id,
        Order.MEMORY: lambda job: -snapshot.held_bytes.get(job.id, 0) or -job.spec.mem_bytes * job.spec.gpus,
        Order.TIME: lambda job: -_since_s(job, snapshot.at),
        Order.USER: lambda job: job.spec.account.name,
    }
    return sorted(snapshot.jobs, key=lambda job: (not job.state.is_active, keys[order](job), job.id))


def job_lines(snapshot: Snapshot, order: Order, text: str = "") -> list[Line]:
    """Return the jobs in *order* as lines of the queue's table, ended jobs last; an array has up to two lines.

    With *text* only the jobs that have all its words in their label, name, user, state, tags, host or command.
    """
    listing = snapshot.listing
    words = text.casefold().split()
    found = [
        Line(job, label, state, listing, snapshot.progress.get(job.id))
        for job in (*ordered(snapshot, order), *snapshot.ended)
        for label, state in labels(job)
    ]
    return [line for line in found if all(word in _searched(line) for word in words)] if words else found


def _searched(line: Line) -> str:
    job, spec = line.job, line.job.spec
    parts = (line.label, spec.name, spec.account.name, str(line.state), *job.tags, job.host or "", spec.command)
    return "\n".join(parts).casefold()


def priority_beside(job: Job, by: int) -> Priority | None:
    """Return the priority that is *by* steps above that of *job*, or None if there is none."""
    wanted = job.spec.priority + by
    return Priority(wanted) if min(Priority) <= wanted <= max(Priority) else None


def head_line(snapshot: Snapshot, order: Order | None, user: str | None) -> str:
    """Return the head line: numbers of running and waiting jobs, the allocated memory, and *order* if it is chosen."""
    running = sum(job.state.is_active for job in snapshot.jobs)
    waiting = f"{sum(map(_waiting, snapshot.jobs))}{'+' if snapshot.more else ''}"
    allocated = format_bytes(sum(each.allocated_bytes for each in snapshot.devices))
    total = format_bytes(sum(each.device.total_bytes for each in snapshot.devices))
    whose = f" of {plain(user)}" if user else ""
    by = f" · by {order.value}" if order is not None else ""
    return (
        f"{running} running, {waiting} waiting{whose} · {allocated} of {total} allocated{by}"
        f" · {snapshot.at.astimezone():%H:%M:%S}"
    )


def as_text(snapshot: Snapshot, heartbeat_s: float, user: str | None, width: int | None = None) -> str:
    """Return a snapshot as plain text *width* columns wide; None: for a pipe, and nothing is omitted or cut."""
    parts = [head_line(snapshot, None, user)]
    if snapshot.devices:
        rows = device_rows(snapshot, heartbeat_s)
        table = table_of(DEVICE_COLUMNS if width is None else device_columns(rows), rows, width)
        closed = closed_lines(snapshot.devices, heartbeat_s, table)
        parts += [table, LEGEND, *(each for line in closed for each in hanging(line, width))]
        parts += device_notes(snapshot, width)
    if snapshot.jobs:
        parts += ["", queue_table.table_of(job_lines(snapshot, Order.ID), width)]
    return "\n".join(parts)


def device_notes(snapshot: Snapshot, width: int | None = None) -> list[str]:
    """Return each device's errors and external processes, in lines of *width* columns; None: one line for each."""
    lines = (*devices.error_lines(snapshot.devices), *devices.external_process_lines(snapshot.devices, snapshot.at))
    return [each for line in lines for each in hanging(line, width)]


def legend(snapshot: Snapshot, width: int) -> str:
    """Return the legend of the bars, and a line for each error and external process, cut to *width* columns."""
    return "\n".join((LEGEND, *(short(line, width) for line in device_notes(snapshot))))


def _waiting(job: Job) -> int:
    """Return the number of waiting jobs in *job*: for an array, its waiting and held members."""
    if job.tally is not None:
        return len(job.tally.left) + len(job.tally.held)
    return 0 if job.state.is_active else 1


def _since_s(job: Job, now: datetime) -> float:
    return max(0.0, (now - (job.started_at or job.submitted_at)).total_seconds())


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Devices, live jobs and their progress.

    ``held_bytes`` is the last sample of each running job's memory, summed over its devices. ``more`` means that there
    are more jobs than the snapshot has.
    """

    at: datetime
    devices: tuple[DeviceStatus, ...]
    jobs: tuple[Job, ...]
    progress: Mapping[int, Progress] = field(default_factory=dict)
    held_bytes: Mapping[int, int] = field(default_factory=dict)
    more: bool = False
    #: The jobs that ended last, the latest first, if asked for.
    ended: tuple[Job, ...] = ()
    #: Devices of each running job.
    runs_on: Mapping[int, tuple[RunDevice, ...]] = field(default_factory=dict)

    @property
    def listing(self) -> Listing:
        """Return the jobs with the memory and devices of those that run."""
        return Listing(at=self.at, jobs=self.jobs, held_bytes=self.held_bytes, devices=self.runs_on)

    def without_secrets(self) -> Snapshot:
        """Return the snapshot as it is printed: its jobs without secrets."""
        return replace(self, jobs=tuple(job.without_secrets() for job in self.jobs))


def take(client: Client, *, user: str | None = None, ended: bool = False) -> Snapshot:
    """Take a snapshot of the site, with only the jobs of *user* if given. *ended*: with the jobs that ended last."""
    devices = tuple(client.devices.list())
    listing = client.jobs.listing(user=user, limit=MOST_JOBS + 1)
    found = {job.id: job for job in listing.jobs}
    more = len(found) > MOST_JOBS
    for job_id in sorted({each for device in devices for each in device.jobs} - found.keys()):
        job = _known(client, job_id)  # a running job that is not among the listed ones
        if job is not None and not job.state.is_end and user in {None, job.spec.account.name}:
            found[job_id] = job
    jobs = tuple(found.values())
    held: dict[int, int] = {}
    for device in devices:
        for each in device.holdings:
            held[each.job_id] = held.get(each.job_id, 0) + each.observed_bytes
    return Snapshot(
        at=listing.at,
        devices=devices,
        jobs=jobs,
        progress=client.logs.progress(jobs, None if more else listing.logs),
        held_bytes=held,
        more=more,
        ended=_ended(client, user) if ended else (),
        runs_on=listing.devices,
    )


def _ended(client: Client, user: str | None) -> tuple[Job, ...]:
    states = [state for state in JobState if state.is_end]
    found = client.history.search(user=user, states=states, sort=Sort.ENDED, limit=ENDED_JOBS)
    return tuple(record.job for record in found)


def _known(client: Client, job_id: int) -> Job | None:
    try:
        return client.jobs.get(job_id)
    except JobNotFound:
        return None
