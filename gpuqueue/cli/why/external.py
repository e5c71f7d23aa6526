"""Part of ``why``: when external processes no longer keep a job from starting. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuqueue.cli.why.table import label
from gpuqueue.client.why import Why
from gpuqueue.queue.explanation import Obstacle, Verdict
from gpuqueue.text.units import format_duration

#: Obstacles of a device that takes no jobs.
_CLOSED = {Obstacle.DRAINED, Obstacle.SILENT}


def when_freed_memory_counts(found: Why, possible: Sequence[Verdict]) -> str:
    """Return when a job has room that lacks only memory which external processes freed recently; else empty."""
    if found.external_half_life_s is None:
        return ""
    waits = {each.device: _counts_after_s(found, each, found.external_half_life_s) for each in possible}
    starts: list[tuple[float, str]] = []
    for group in found.together(possible):
        known = sorted((wait_s, each.device) for each in group if (wait_s := waits[each.device]) is not None)
        if len(known) >= found.job.spec.gpus:
            starts.append(known[found.job.spec.gpus - 1])
    if not starts:
        return ""
    wait_s, device = min(starts)
    when = f"in about {format_duration(max(1.0, wait_s))} on {label(found, device)}"
    return f"{when}, if the external processes there do not take again what they have just freed"


def _counts_after_s(found: Why, device: Verdict, half_life_s: float) -> float | None:
    """Return after how many seconds *device* has room, if memory that was freed recently is enough; None if it is not.

    Freed memory still counts as used, half as much after each half-life (:mod:`workers.measure.external_processes`).
    """
    if device.obstacle is Obstacle.ALONE:
        return 0.0
    status = found.devices.get(device.device)
    freed_bytes = sum(other.freed_bytes for other in status.external_processes) if status is not None else 0
    lacking_bytes = found.job.spec.mem_bytes - device.available_bytes
    if device.obstacle is not Obstacle.MEMORY or not 0 < lacking_bytes < freed_bytes:
        return None
    return math.log2(freed_bytes / (freed_bytes - lacking_bytes)) * half_life_s


def when_external_ends(found: Why, possible: Sequence[Verdict]) -> str:
    """Return on which devices external processes must have ended; empty if there is not enough room even then."""
    held = {each.device for each in possible if _is_held(found, each)}
    places: list[str] = []
    for group in found.together(each for each in possible if each.device in held or _is_ready(found, each)):
        names = [label(found, each.device) for each in group if each.device in held]
        lacking = found.job.spec.gpus - (len(group) - len(names))
        if 0 < lacking <= len(names):
            places.append(_some(names, lacking))
    return f"not before the external processes on {' or '.join(places)} have ended" if places else ""


def _some(names: Sequence[str], number: int) -> str:
    """Return words for any *number* of the devices *names*."""
    if number == len(names):
        return " and ".join(names)
    return " or ".join(names) if number == 1 else f"{number} of {', '.join(names)}"


def _is_ready(found: Why, device: Verdict) -> bool:
    """Return whether *device* has room for the job, now or once its runs have ended."""
    has_room = found.job.spec.mem_bytes <= device.capacity_bytes
    return has_room and device.obstacle not in _CLOSED and not _is_held(found, device)


def _is_held(found: Why, device: Verdict) -> bool:
    """Return whether *device* has room for the job once its external processes have ended, and not before."""
    status, spec = found.devices.get(device.device), found.job.spec
    if status is None or not status.external_processes:
        return False
    lacks_memory = device.obstacle is Obstacle.MEMORY and device.capacity_bytes < spec.mem_bytes
    is_in_use = device.obstacle is Obstacle.OCCUPIED and not device.runs
    room_bytes = status.device.total_bytes - status.headroom_bytes - (status.driver_bytes or 0)
    return (lacks_memory or is_in_use) and spec.mem_bytes <= room_bytes
