"""Converts the reply of ``why.lua`` to values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuqueue.model.job import JobState, Level
from gpuqueue.model.limits import Measure
from gpuqueue.queue.explanation import (
    Explanation,
    LimitReached,
    MakingPlace,
    Obstacle,
    Occupant,
    RoomUnderLimits,
    Start,
    Verdict,
)


def explanation(job_id: int, reply: Sequence[Any]) -> Explanation:
    """Return the reply of why.lua as a value."""
    state, level, higher, users_before, theirs, own_before, since, first, limits, under, *devices = reply
    stands = JobState(state)
    limit, *more_limits = (_limit(*each) for each in limits) if limits else (None,)
    room = _room(*under) if under else None
    making, devices = ([], devices) if stands in {JobState.QUEUED, JobState.HELD} else (devices, [])
    return Explanation(
        job_id=job_id,
        state=stands,
        making_place=_making_place(*making[0]) if making else None,
        level=Level(int(level)),
        higher=int(higher),
        users_before=int(users_before),
        theirs=int(theirs),
        own_before=int(own_before),
        waits_since_ms=int(since) if since else None,
        start=_start(room, *first) if first else None,
        devices=tuple(map(_verdict, devices)),
        limit=limit,
        more_limits=tuple(filter(None, more_limits)),
        room=room,
    )


def _limit(whose: str, measure: str, used: str, most: str, asked: str, kept_for: str, *runs: str) -> LimitReached:
    return LimitReached(
        whose=whose,
        measure=Measure(measure),
        used=int(used),
        most=int(most),
        asked=int(asked),
        kept_for=int(kept_for) if kept_for else None,
        runs=tuple(sorted(map(int, runs))),
    )


def _making_place(by: str, deadline_ms: str, times: str) -> MakingPlace:
    return MakingPlace(by=int(by) if by else None, deadline_ms=int(deadline_ms or 0) or None, times=int(times))


def _room(at_ms: str, kept_for: str, runs: str) -> RoomUnderLimits:
    return RoomUnderLimits(at_ms=int(at_ms) or None, kept_for=int(kept_for) if kept_for else None, runs=_ids(runs))


def _start(room: RoomUnderLimits | None, free: str, devices: str, blockers: str, in_vain: str, *more: str) -> Start:
    rivals, limited, behind = more
    free_ms = int(free) or None
    under_ms = room.at_ms if room is not None and limited else free_ms
    room_ms = max(free_ms, under_ms) if free_ms is not None and under_ms is not None else None
    return Start(
        at_ms=room_ms if rivals == "0" else None,
        room_ms=room_ms,
        rivals=int(rivals),
        devices=tuple(devices.split(",")),
        blockers=_ids(blockers),
        in_vain=_ids(in_vain),
        free_ms=free_ms,
        limited=bool(limited),
        behind=int(behind) if behind else None,
    )


def _ids(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(job_id) for job_id in text.split(",") if job_id}))


def _verdict(row: Sequence[str]) -> Verdict:
    device, host, obstacle, available, capacity, total, kept_for, place_made, *runs = row
    return Verdict(
        device=device,
        host=host,
        obstacle=Obstacle(obstacle),
        available_bytes=int(available),
        capacity_bytes=int(capacity),
        total_bytes=int(total),
        kept_for=int(kept_for) if kept_for else None,
        place_made=bool(place_made),
        runs=tuple(_occupant(*each) for each in zip(*(runs[place::6] for place in range(6)), strict=True)),
    )


def _occupant(job_id: str, held: str, ends: str, made_place: str, going: str, level: str) -> Occupant:
    return Occupant(
        job_id=int(job_id),
        held_bytes=int(held),
        ends_ms=int(ends) or None,
        made_place=int(made_place),
        going=bool(going),
        level=Level(int(level)) if level else None,
    )
