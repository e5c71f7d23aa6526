"""The table of ``why``: each device, its available memory, and why the job does not run there. Pure.

On a terminal, long reasons are wrapped within their column. For a pipe, nothing is wrapped or cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuqueue.cli.output import render
from gpuqueue.cli.output.terminal_width import GAP, NO_LIMIT
from gpuqueue.client.why import Why
from gpuqueue.clock import from_epoch_ms
from gpuqueue.model.job import JobState
from gpuqueue.queue.explanation import Obstacle, Verdict
from gpuqueue.text.sanitize import cells, plain, short, wrapped
from gpuqueue.text.units import format_apart, format_bytes

HEAD = ("DEVICE", "CAN GIVE", "OF", "WHY NOT THERE")
#: Least width of a device's name, and the width of the reason below which names are cut, in columns.
LEAST_NAME, LEAST_REASON = 11, 40


def table(found: Why, devices: Sequence[Verdict], width: int | None = None) -> str:
    """Return *devices* as a table *width* columns wide, in their order; None: for a pipe."""
    if not devices:
        return "no device is served: no worker has announced one"
    rows = [
        (
            label(found, verdict.device),
            format_bytes(max(0, verdict.available_bytes)),
            format_bytes(verdict.total_bytes),
            _why_not(found, verdict),
        )
        for verdict in devices
    ]
    return render.table(HEAD, list(_lines(rows, width)), right=(1, 2))


def _lines(rows: list[tuple[str, str, str, str]], width: int | None) -> Iterator[tuple[str, str, str, str]]:
    """Yield the lines of *rows*; a row has a line for each line of its wrapped reason."""
    name, reason = _widths(rows, width)
    for device, promises, total, why_not in rows:
        first, *more = wrapped(why_not, reason)
        yield render.place(device, name), promises, total, first
        yield from (("", "", "", each) for each in more)


def _widths(rows: list[tuple[str, str, str, str]], width: int | None) -> tuple[int, int]:
    """Return the widths of the columns for names and for reasons."""
    if width is None:
        return NO_LIMIT, NO_LIMIT
    names, promises, totals = (max(cells(row[i]) for row in (HEAD, *rows)) for i in range(3))
    room = width - promises - totals - 3 * GAP
    name = min(names, max(LEAST_NAME, room - LEAST_REASON))
    return name, max(cells(HEAD[3]), room - name)


def label(found: Why, uuid: str) -> str:
    """Return the label of a device: ``HOST:INDEX``, or its UUID if no worker has announced it."""
    status = found.devices.get(uuid)
    return plain(uuid) if status is None else plain(f"{status.host}:{render.device_label(status.device)}")


def trouble_on(found: Why, verdict: Verdict) -> str | None:
    """Return why the worker of a device gives it no job now, None if it does or nobody knows."""
    status = found.devices.get(verdict.device)
    return None if status is None or status.trouble is None else plain(status.trouble)


def called(found: Why, job_id: int) -> str:
    """Return ``job`` and the label of a job, or its id if the label is unknown."""
    other = found.others.get(job_id)
    return f"job {other.label if other else job_id}"


def named(found: Why, job_id: int) -> str:
    """Return the same as :func:`called`, with the job's user if known."""
    other = found.others.get(job_id)
    return called(found, job_id) + (f" ({plain(other.spec.account.name)})" if other else "")


def count(number: int, noun: str) -> str:
    """Return *number* and *noun*, in the plural if needed."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clock(at_ms: int) -> str:
    """Return a time of the store's clock, in milliseconds since the epoch, as local time."""
    return render.when(from_epoch_ms(at_ms))


def _why_not(found: Why, verdict: Verdict) -> str:
    by_others = _in_use(found, verdict)
    if by_others is not None:
        return by_others
    trouble = trouble_on(found, verdict)
    if trouble is not None and verdict.obstacle is Obstacle.SLOTS:
        return f"closed: {trouble}"
    may_start = verdict.obstacle is not Obstacle.FITS or found.job.state is not JobState.HELD
    obstacle = verdict.obstacle if may_start else Obstacle.NOT_YET  # a held member of an array
    return plain(_obstacles(found, verdict)[obstacle])


def _in_use(found: Why, verdict: Verdict) -> str | None:
    """Return why the memory of a device is too small or in use, with its users; None for another obstacle."""
    spec = found.job.spec
    if verdict.obstacle is Obstacle.MEMORY:
        lacking = format_bytes(spec.mem_bytes - max(0, verdict.available_bytes))
        return f"{lacking} too little: {'; '.join(_users_of(found, verdict))}"
    if verdict.obstacle is Obstacle.TOO_SMALL:
        asked, most = format_apart(spec.mem_bytes, verdict.total_bytes)
        return f"too small: {asked} asked for, and it has {most} less its headroom"
    if verdict.obstacle is Obstacle.EXCLUSIVE:
        return f"{'; '.join(_users_of(found, verdict, external_processes=False))}: it has the device for itself"
    if verdict.obstacle is Obstacle.OCCUPIED:
        return (
            f"the job wants it for itself: {'; '.join(_users_of(found, verdict, external_processes=not verdict.runs))}"
        )
    return None


def _obstacles(found: Why, verdict: Verdict) -> dict[Obstacle, str]:
    """Return the words for each obstacle that has nothing to do with the memory in use."""
    spec, status = found.job.spec, found.devices.get(verdict.device)
    drained = status.drained if status is not None else None
    silent_s = found.silent_s(verdict.device)
    silence = f" for {silent_s:.0f}s" if silent_s is not None else ""
    return {
        Obstacle.POOL: f"not in pool {spec.pool}",
        Obstacle.KIND: f"not a {spec.device or 'gpu'}",
        Obstacle.NAMED: f"the job names {'another device' if len(spec.placement.devices) == 1 else 'other devices'}",
        Obstacle.MODEL: f"not of type {' or '.join(spec.placement.models)}",
        Obstacle.EXCLUDED: f"it could not start the job: {verdict.cannot_start or 'no reason is known'}",
        Obstacle.PART: "a MIG instance: a program can use only one",
        Obstacle.TOO_LARGE: "too large: all of its memory is more than max_mem allows, see gpuqueue limits",
        Obstacle.DRAINED: f"drained: {drained or 'see gpuqueue gpus'}",
        Obstacle.SILENT: f"its worker is silent{silence}: see gpuqueue status there",
        Obstacle.SLOTS: f"it runs its maximum number of jobs: {len(verdict.runs)}",
        Obstacle.RESERVED: _reserved(found, verdict),
        Obstacle.ALONE: f"it has room, but too few other devices of its host have: {spec.gpus} are needed",
        Obstacle.NOT_YET: "it has room, but the job may not start yet",
        Obstacle.LIMIT: "it has room, and a limit leaves none: see above",
        Obstacle.FITS: f"it fits, but its worker is silent{silence}: see gpuqueue status there"
        if silence
        else "it fits: it starts there when it is its turn",
    }


def _reserved(found: Why, verdict: Verdict) -> str:
    why = "for which others were preempted" if verdict.by_preemption else "which has waited too long"
    return f"reserved for {called(found, verdict.reserved_for or 0)}, {why}"


def _users_of(found: Why, verdict: Verdict, *, external_processes: bool = True) -> Iterator[str]:
    """Yield the jobs on a device, largest first, then headroom and, if asked for, external processes."""
    status, trouble = found.devices.get(verdict.device), trouble_on(found, verdict)
    if trouble is not None:
        yield trouble
        return
    for run in sorted(verdict.runs, key=lambda each: -each.held_bytes):
        until = f" until {clock(run.ends_ms)}" if run.ends_ms is not None else ""
        yield f"{named(found, run.job_id)} {format_bytes(run.held_bytes)}{until}"
    if status is None or not external_processes:
        return
    if status.external_bytes is None:
        yield "it gives no reading of its memory"
    elif status.external_bytes > 0:
        who = ", ".join(f"{plain(each.user or '?')} {short(each.command or '?')}" for each in status.external_processes)
        freed_bytes = sum(each.freed_bytes for each in status.external_processes)
        freed = f", {format_bytes(freed_bytes)} of it freed a moment ago" if freed_bytes else ""
        yield f"external {format_bytes(status.external_bytes)}{freed}" + (f" ({who})" if who else "")
    if status.headroom_bytes > 0:
        yield f"headroom {format_bytes(status.headroom_bytes)}"
