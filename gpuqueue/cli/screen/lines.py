"""A snapshot as the cells of two tables, for a screen and for plain text alike. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum

from gpuqueue.cli import render
from gpuqueue.cli.arrays import label
from gpuqueue.cli.drain import condition
from gpuqueue.cli.progress_words import share_bar
from gpuqueue.cli.screen.snapshot import Snapshot
from gpuqueue.job import Job
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.units import format_bytes, format_duration
from gpuqueue.words import plain, short

DEVICE_HEAD = ("DEVICE", "NAME", "MEMORY", "PROMISED", "FREE", "JOBS", "STATE")
JOB_HEAD = ("ID", "NAME", "USER", "STATE", "MEMORY", "TIME", "PROGRESS, OR WHY IT WAITS")
BAR_WIDTH = 20

#: Kind of memory on a device -> its mark in a bar. They differ also where there is no colour.
HELD, PROMISED, STRANGERS, HEADROOM, FREE = "█", "▒", "▚", "╌", "·"
LEGEND = f"{HELD} held  {PROMISED} promised  {STRANGERS} strangers  {HEADROOM} kept free  {FREE} free"


class Order(str, Enum):
    """How the jobs are sorted; each key press takes the next one."""

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
    """Return what a device's memory is used for, as (mark, bytes) from left to right; together its total."""
    total = device.device.total_bytes
    parts, left = [], total
    held = sum(each.observed_bytes for each in device.holdings)
    for mark, size_bytes in (
        (HELD, held),
        (PROMISED, device.promised_bytes - held),
        (STRANGERS, total if device.foreign_bytes is None else device.foreign_bytes),
        (HEADROOM, device.headroom_bytes),
    ):
        taken = max(0, min(size_bytes, left))  # a stranger may sit in what is promised
        parts.append((mark, taken))
        left -= taken
    return [*parts, (FREE, left)]


def bar(parts: Sequence[tuple[str, int]], width: int = BAR_WIDTH) -> str:
    """Return a bar of *width* cells; what is there at all has a cell, as far as they go: largest remainders."""
    whole = sum(size_bytes for _, size_bytes in parts)
    if not whole:
        return " " * width
    exact = [(mark, size_bytes * width / whole) for mark, size_bytes in parts]
    cells = [int(share) for _, share in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: (0 < exact[i][1] < 1, exact[i][1] - cells[i]), reverse=True)
    for i in by_rest[: width - sum(cells)]:
        cells[i] += 1
    return "".join(mark * count for (mark, _), count in zip(exact, cells, strict=True))


def device_rows(snapshot: Snapshot, beat_s: float) -> list[tuple[str, ...]]:
    """Return a row for each device, under DEVICE_HEAD."""
    return [
        (
            plain(f"{each.host}:{render.device_label(each.device)}"),
            short(each.device.name, 18),
            bar(memory_parts(each)),
            f"{format_bytes(each.promised_bytes)}/{format_bytes(each.device.total_bytes)}",
            format_bytes(each.free_bytes),
            ",".join(map(str, each.jobs)) or "-",
            condition(each, beat_s),
        )
        for each in snapshot.devices
    ]


def ordered(snapshot: Snapshot, order: Order) -> list[Job]:
    """Return the jobs in *order*, those on a device before those that wait."""
    keys: dict[Order, Callable[[Job], object]] = {
        Order.ID: lambda job: job.id,
        Order.MEMORY: lambda job: -snapshot.held_bytes.get(job.id, 0) or -job.spec.mem_bytes * job.spec.gpus,
        Order.TIME: lambda job: -_since_s(job, snapshot.at),
        Order.USER: lambda job: job.spec.account.name,
    }
    return sorted(snapshot.jobs, key=lambda job: (not job.state.is_active, keys[order](job), job.id))


def job_row(job: Job, snapshot: Snapshot) -> tuple[str, ...]:
    """Return a job's row, under JOB_HEAD."""
    asked = render.asked_of(job)
    held = snapshot.held_bytes.get(job.id)
    limit_s = job.spec.time_limit_s
    took = format_duration(_since_s(job, snapshot.at))
    progress = snapshot.progress.get(job.id)
    reason = render.waits_for(job, snapshot.at)
    return (
        label(job),
        short(job.spec.name, 14),
        short(job.spec.account.name, 8),
        str(job.state),
        f"{format_bytes(held)}/{asked}" if held is not None else asked,
        f"{took}/{format_duration(limit_s)}" if limit_s else took,
        share_bar(progress) if progress is not None else reason,
    )


def head_line(snapshot: Snapshot, order: Order, user: str | None) -> str:
    """Return the line above all: who runs, who waits, how much is promised."""
    running = sum(job.state.is_active for job in snapshot.jobs)
    waiting = f"{len(snapshot.jobs) - running}{'+' if snapshot.more else ''}"
    promised = format_bytes(sum(each.promised_bytes for each in snapshot.devices))
    total = format_bytes(sum(each.device.total_bytes for each in snapshot.devices))
    whose = f" of {plain(user)}" if user else ""
    return (
        f"{running} running, {waiting} waiting{whose} · {promised} of {total} promised · by {order.value}"
        f" · {snapshot.at.astimezone():%H:%M:%S}"
    )


def as_text(snapshot: Snapshot, beat_s: float, user: str | None) -> str:
    """Return one picture as plain text."""
    parts = [head_line(snapshot, Order.ID, user)]
    if snapshot.devices:
        parts += [render.table(DEVICE_HEAD, device_rows(snapshot, beat_s), right=(3, 4)), LEGEND]
    if snapshot.jobs:
        rows = [job_row(job, snapshot) for job in ordered(snapshot, Order.ID)]
        parts += ["", render.table(JOB_HEAD, rows, right=(0, 4, 5))]
    return "\n".join(parts)


def _since_s(job: Job, now: datetime) -> float:
    return max(0.0, (now - (job.started_at or job.submitted_at)).total_seconds())
