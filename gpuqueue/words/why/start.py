"""Part of ``why``: when the job may start, and what that time depends on. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuqueue.client.why import Why
from gpuqueue.lazy.imports import later
from gpuqueue.queue.explanation import NEVER_THERE, Explanation, Obstacle, Start, Verdict
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_duration
from gpuqueue.words.values import clock, missing_devices, place_of, reserved_in_words, short_time
from gpuqueue.words.why.devices import called, count, label, named, next_reservation, trouble_on

if TYPE_CHECKING:
    from gpuqueue.model import burst
    from gpuqueue.model.lending import Lender
else:  # few sites borrow
    burst = later("gpuqueue.model.burst")

#: Obstacles of a device that takes no job. A job on several devices cannot use it together with others.
_CLOSED = {Obstacle.DRAINED, Obstacle.CALENDAR, Obstacle.END, Obstacle.SILENT}
#: Obstacles of a device that has room for the job, apart from reservations.
_WITH_ROOM = {Obstacle.RESERVED, Obstacle.ALONE, Obstacle.LIMIT, Obstacle.NOT_YET, Obstacle.FITS}


def start_lines(found: Why, explanation: Explanation) -> Iterator[str]:
    """Yield the latest start of the job, or why it is unknown and how long the runs in its way usually take."""
    start, limit = explanation.start, explanation.limit
    if limit is not None and limit.asked > limit.most and (start is None or start.limited):
        yield "never under this limit: this job alone exceeds it. Edit the job, or have the limit raised"
        return  # the limit was added or lowered after the submission
    if start is None:
        yield _no_start(found, explanation)
        return
    where = _where(found, start)
    if explanation.has_room:
        yield f"there is room on {where}: it starts {_after_room(found, start)}"
        return
    if start.at_ms is not None:
        by = f"by {clock(start.at_ms)} on {where}, when {_until_then(found, explanation)}, unless others go before it"
        about = about_in_brief(found, explanation)
        yield f"{by}; probably {about}" if about else by
        for each in explanation.runs_in_the_way:
            yield from _progress(found, each)
        return
    about = "" if start.rivals or start.behind or start.limited else about_in_brief(found, explanation)
    yield f"{about or 'unknown'}: {_unknown(found, explanation, start)}"
    if start.in_vain:
        lasting = " and ".join(called(found, each) for each in start.in_vain)
        vain = f"the end of {lasting} took too long, so the reservation was dropped; other jobs start there"
        yield f"nothing is reserved for it there before: {vain}"
    for each in explanation.runs_in_the_way:
        yield from _progress(found, each)
        yield from _usual(found, each)


def left_s(found: Why, explanation: Explanation) -> float | None:
    """Return the time until all runs in the way have probably ended, in seconds, or None if one of them is unknown.

    A run whose output shows none takes as long as earlier runs of the same command.
    """
    known = [_left_s(found, each) for each in explanation.runs_in_the_way]
    times = [each for each in known if each is not None]
    return max(times) if times and len(times) == len(explanation.runs_in_the_way) else None


def about_in_brief(found: Why, explanation: Explanation) -> str:
    """Return in what time all runs in the way have probably ended, in words; empty if that is unknown."""
    time_left_s = left_s(found, explanation)
    return "" if time_left_s is None else f"in about {format_duration(max(1.0, round(time_left_s)))}"


def _left_s(found: Why, job_id: int) -> float | None:
    progress, usual = found.progress.get(job_id), found.usual.get(job_id)
    if progress is not None and progress.left_s is not None:
        return progress.left_s
    return usual.left_s if usual is not None and usual.is_alike else None


def limits_of(explanation: Explanation) -> str:
    """Return a phrase for the limits in a job's way."""
    return "its limits" if len(explanation.limits) > 1 else "the limit"


def have(number: int) -> str:
    """Return ``has`` or ``have`` for a list of *number* items."""
    return "has" if number == 1 else "have"


def _where(found: Why, start: Start) -> str:
    return ", ".join(label(found, device) for device in start.devices)


def _listed(found: Why, runs: Sequence[int]) -> str:
    return ", ".join(called(found, each) for each in runs)


def _until_then(found: Why, explanation: Explanation) -> str:
    """Return the conditions of a known start time, in words."""
    start = explanation.start
    behind = start.behind if start is not None else None
    parts = [f"{_listed(found, runs)} must have ended" for runs in [explanation.runs_in_the_way] if runs]
    if behind is not None:
        parts.append(f"{called(found, behind)}, for which that is reserved, has started")
    if start is not None and start.limited:
        parts.append(f"there is room under {limits_of(explanation)}")
    return " and ".join(parts)


def _unknown(found: Why, explanation: Explanation, start: Start) -> str:
    """Return why the start time is unknown: the jobs that go first, or runs without a time limit."""
    room = explanation.room
    if start.limited and room is not None and room.reserved_for is not None:
        holder = named(found, room.reserved_for)
        return (
            f"first {holder}, for which the room under {limits_of(explanation)} is reserved, must have started or gone"
        )
    where, rivals = _where(found, start), start.rivals
    first = f"{count(rivals, 'job')} that may take the room {'goes' if rivals == 1 else 'go'} before it"
    if start.room_ms is not None and start.behind is not None and not start.limited:
        return (
            f"{first}; {called(found, start.behind)}, for which {where} is reserved, has room by {clock(start.room_ms)}"
        )
    if start.room_ms is not None:
        by = f"by {clock(start.room_ms)} on {where}, when {_until_then(found, explanation)}"
        return f"{first}; there is room for the first of them {by}"
    return _endless(found, explanation, start) + (f"; {first}" if rivals else "")


def _endless(found: Why, explanation: Explanation, start: Start) -> str:
    """Return the runs without a time limit that must end before there is room."""
    where, room = _where(found, start), explanation.room
    if start.free_ms is None and start.behind is not None:
        return f"{where} is reserved for {called(found, start.behind)}, and it is unknown when that job has room"
    waited_for = [(f"{where} has room", start.blockers)] if start.free_ms is None else []
    if start.limited and room is not None and room.at_ms is None:
        waited_for.append((f"there is room under {limits_of(explanation)}", room.runs))
    parts = [f"{what} once {_listed(found, runs)} {have(len(runs))} ended" for what, runs in waited_for]
    one = len({each for _, runs in waited_for for each in runs}) == 1
    return f"{' and '.join(parts)}, and {'it has no' if one else 'not all of these have a'} time limit"


def _progress(found: Why, job_id: int) -> Iterator[str]:
    """Yield how far the run of the job *job_id* is, as far as its output shows it."""
    if job_id in found.progress:
        yield f"{called(found, job_id)}: {plain(found.progress[job_id].words)}"


def _usual(found: Why, job_id: int) -> Iterator[str]:
    """Yield how long earlier runs of the job *job_id* took, unless its time left is known by its progress."""
    if job_id in found.progress and found.progress[job_id].left_s is not None:
        return
    usual, before = found.usual.get(job_id), found.outlived.get(job_id)
    if before is not None:
        runs = "the last run" if before == 1 else f"each of the last {before} runs"
        yield f"{called(found, job_id)}: it has lasted longer than {runs} like it: its end is unknown"
    if usual is not None:
        which = "earlier runs of this command" if usual.is_alike else "runs of its name"
        yield (
            f"{called(found, job_id)}: {which} took {format_duration(usual.median_s)} (half of them), "
            f"{format_duration(usual.p90_s)} (nine of ten), in {count(usual.runs, 'run')} that lasted as long"
        )


def _after_room(found: Why, start: Start) -> str:
    """Return what the job waits for if there is room."""
    silent = [label(found, device) for device in start.devices if found.silent_s(device) is not None]
    if silent:
        return f"once the worker of {', '.join(silent)} sends heartbeats again, and it is its turn"
    return "when it is its turn"


def _no_start(found: Why, explanation: Explanation) -> str:
    """Return why no device that matches the job's device filter has a known start time."""
    missing = missing_devices(found.job, found.devices)
    if missing is not None:
        return f"never: {missing}"
    possible = [each for each in explanation.devices if each.obstacle not in NEVER_THERE]
    lost = [each.host for each in explanation.devices if each.obstacle is Obstacle.KIND and _has_lost(found, each)]
    if lost and not possible:
        hosts = " or ".join(map(plain, lost))
        return f"not before {hosts} finds a GPU: see below. On the CPU: gpuqueue edit {found.job.label} --device any"
    if explanation.devices and not possible:
        never = "never: no device that is served now can run it: see the reasons below, and edit the job"
        return lent_words(found) or never
    holders = _reserved_from(found, possible)
    if holders:
        first = ", ".join(named(found, each) for each in sorted(holders))
        return f"unknown: there is room once {first}, for which devices are reserved, has started or gone"
    silent = [label(found, each.device) for each in possible if each.obstacle is Obstacle.SILENT]
    if silent and not any(each.obstacle is Obstacle.DRAINED for each in possible):
        return f"not before the worker of {' or '.join(silent)} sends heartbeats again: see gpuqueue status there"
    return (
        resume_words(found, possible)
        or _when_given_back(found, possible)
        or _not_in_time(found, possible)
        or _when_open(found, possible)
        or when_freed_memory_counts(found, possible)
        or when_external_ends(found, possible)
        or lent_words(found)
        or "unknown: no device that is served now will ever have enough room"
    )


def lent_words(found: Why) -> str:
    """Return when a pilot may run the job, which no device of the site can; empty if the site borrows none."""
    spec = found.job.spec
    if spec.is_whole:
        return f"not before a host hands jobs to {spec.device}: gpuqueue up --devices {spec.device}"
    ways = [
        f"a pilot of {burst.ENGINES[each.engine]} {_asked_for(each)}" for each in found.lenders if each.why_not is None
    ]
    if ways:
        return f"not before a pilot runs: {' or '.join(ways)}"
    return "; ".join(
        f"never: no pilot of {burst.ENGINES[each.engine]} is for it: {each.why_not}" for each in found.lenders[:1]
    )


def _asked_for(lender: Lender) -> str:
    """Return when a pilot is asked for, in words."""
    if lender.asks_in_s is None:
        return f"can run it once an admin asks for one with gpuqueue burst {lender.engine}"
    if lender.bound is not None:
        none = f"can run it, but the rule asks for none now, because {lender.bound}"
        return f"{none}: see gpuqueue burst why {lender.engine}"
    when = f"in {format_duration(math.ceil(lender.asks_in_s))}" if lender.asks_in_s else "with its next turn"
    return f"can run it, and the rule asks for one {when}: see gpuqueue burst why {lender.engine}"


def _has_lost(found: Why, device: Verdict) -> bool:
    status = found.devices.get(device.device)
    return status is not None and status.lost_gpus


def _not_in_time(found: Why, possible: Sequence[Verdict]) -> str:
    """Return which devices end before the job would be over; empty if others would be enough."""
    ending = [each for each in possible if each.obstacle is Obstacle.END]
    if not ending or any(_has_enough(found, group) for group in found.together(possible)):
        return ""
    names = " or ".join(label(found, each.device) for each in ending)
    its = "its end comes" if len(ending) == 1 else "their ends come"
    if any(next_reservation(found, each) for each in ending):
        its = "a reservation comes"
    shorten = f"; with a shorter limit it may: gpuqueue edit {found.job.label} --time"
    return f"not on {names}: {its} before the job would be over{shorten}"


def _when_given_back(found: Why, possible: Sequence[Verdict]) -> str:
    """Return when the first device is not reserved for others any more; empty if none is, or others are enough."""
    reserved = [
        found.devices[each.device]
        for each in possible
        if each.obstacle is Obstacle.CALENDAR and each.device in found.devices
    ]
    if not reserved or any(_has_enough(found, group) for group in found.together(possible)):
        return ""
    first = min((each for each in reserved if each.calendar), key=lambda each: each.calendar[0].ends_at, default=None)
    if first is None:
        return ""
    where = place_of(first.host, [first.device])
    return f"not before {short_time(first.calendar[0].ends_at)}: {where} is {reserved_in_words(first)}"


def _has_enough(found: Why, group: Sequence[Verdict]) -> bool:
    return sum(each.obstacle not in _CLOSED for each in group) >= found.job.spec.device_count


def _when_open(found: Why, possible: Sequence[Verdict]) -> str:
    """Return which closed devices must take jobs again, and why they do not; empty if none is closed."""
    closed = {label(found, each.device): why for each in possible if (why := trouble_on(found, each)) is not None}
    return (
        f"not before {' or '.join(closed)} takes jobs again: {'; '.join(dict.fromkeys(closed.values()))}"
        if closed
        else ""
    )


def _reserved_from(found: Why, possible: Sequence[Verdict]) -> set[int]:
    """Return the jobs whose reservations alone keep this job from starting now."""
    enough = found.with_enough(each for each in possible if each.obstacle in _WITH_ROOM)
    return {
        each.reserved_for for each in enough if each.obstacle is Obstacle.RESERVED and each.reserved_for is not None
    }


def resume_words(found: Why, possible: Sequence[Verdict]) -> str:
    """Return which of the *possible* devices must be resumed, and the command; empty if resuming does not help.

    All devices of a job are on one host. The text names as many of a host's drained devices as the job lacks there.
    """
    ways = _ways(found, possible)
    if not ways:
        return ""
    fewest = min(lacking for lacking, _ in ways)
    choices = [drained for lacking, drained in ways if lacking == fewest]
    names = " or ".join(_some(drained, fewest) for drained in choices)
    return f"not before somebody resumes {names}: gpuqueue resume {' '.join(choices[0][:fewest])}"


def _ways(found: Why, possible: Sequence[Verdict]) -> list[tuple[int, list[str]]]:
    """Return for each host and device kind how many devices must be resumed, and the drained ones to choose from.

    Hosts with too few drained devices are omitted.
    """
    ways = []
    for group in found.together(possible):
        drained = [label(found, each.device) for each in group if each.obstacle is Obstacle.DRAINED]
        lacking = max(1, found.job.spec.device_count - sum(each.obstacle not in _CLOSED for each in group))
        if lacking <= len(drained):
            ways.append((lacking, drained))
    return ways


def when_freed_memory_counts(found: Why, possible: Sequence[Verdict]) -> str:
    """Return when a job has room that lacks only memory which external processes freed recently; else empty."""
    if found.external_half_life_s is None:
        return ""
    waits = {each.device: _counts_after_s(found, each, found.external_half_life_s) for each in possible}
    starts: list[tuple[float, str]] = []
    for group in found.together(possible):
        known = sorted((wait_s, each.device) for each in group if (wait_s := waits[each.device]) is not None)
        if len(known) >= found.job.spec.device_count:
            starts.append(known[found.job.spec.device_count - 1])
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
        lacking = found.job.spec.device_count - (len(group) - len(names))
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
