"""Why a job does not run: the reply of ``why.lua`` as values. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import Enum
from typing import Any

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.measures import Measure


class Obstacle(str, Enum):
    """The first reason, in this order, why a device cannot take a job."""

    #: The job asks for another pool.
    POOL = "pool"
    #: The job asks for another device kind.
    KIND = "kind"
    #: The job names other devices.
    NAMED = "named"
    #: The device is of a model that the job does not ask for.
    MODEL = "model"
    #: The host could not start the job.
    EXCLUDED = "excluded"
    #: The device is a MIG instance, and the job needs several devices.
    PART = "part"
    #: The device has too little memory for the job, even when empty.
    TOO_SMALL = "too_small"
    #: The job wants the device exclusively, and its memory is more than the ``max_mem`` of the job's pool.
    TOO_LARGE = "too_large"
    #: The device is drained.
    DRAINED = "drained"
    #: People have reserved the device for the jobs of others now.
    CALENDAR = "calendar"
    #: The device has an end before the job would be over, or is reserved for the jobs of others then.
    END = "end"
    #: The worker of the device has sent no heartbeat for a while.
    SILENT = "silent"
    #: A run holds the device exclusively.
    EXCLUSIVE = "exclusive"
    #: The job wants the device exclusively, and the device is in use.
    OCCUPIED = "occupied"
    #: The device has too little free memory now.
    MEMORY = "memory"
    #: The device runs its maximum number of jobs.
    SLOTS = "slots"
    #: The device is reserved for a job that has waited too long, or for which others were preempted.
    RESERVED = "reserved"
    #: The device has room, but too few others on its host do: the job needs several.
    ALONE = "alone"
    #: The device has room, but a limit of the job's user or group leaves none.
    LIMIT = "limit"
    #: The job could start there, but it waits for another job, for its time, or for a person.
    NOT_YET = "not_yet"
    #: No obstacle: the job starts there when it is its turn.
    FITS = "fits"

    def __str__(self) -> str:
        return self.value


#: Obstacles that stay when other jobs end: the device can never run this job.
NEVER_THERE = frozenset(
    {
        *(Obstacle.POOL, Obstacle.KIND, Obstacle.NAMED, Obstacle.MODEL),
        *(Obstacle.PART, Obstacle.TOO_SMALL, Obstacle.TOO_LARGE, Obstacle.EXCLUDED),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Occupant:
    """A run on a device: the bytes that are counted for it, and when it must have ended (None: it has no time limit).

    ``preemptions`` is how often its job was preempted. ``going``: the run ends in any case, because it was cancelled or
    is being preempted. ``priority`` is its current priority, which includes promotions by aging; None if unknown.
    """

    job_id: int
    held_bytes: int
    ends_ms: int | None = None
    preemptions: int = 0
    going: bool = False
    priority: Priority | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A device, and the job's obstacle there. ``capacity_bytes`` is what it could allocate if no job ran there.

    ``reserved_for`` is the job that the device is reserved for. ``by_preemption``: the device is reserved because runs
    of lower priority were preempted for that job; otherwise because that job has waited too long. ``cannot_start``
    is why the excluded host could not start the job. ``end_ms`` is when the device takes no job of this user any more:
    its end, or the start of a calendar reservation of others; None without either.
    """

    device: str
    host: str
    obstacle: Obstacle
    available_bytes: int
    capacity_bytes: int
    total_bytes: int
    reserved_for: int | None = None
    runs: tuple[Occupant, ...] = ()
    by_preemption: bool = False
    cannot_start: str | None = None
    end_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The devices that have room for the job first, after the runs of ``blockers`` have ended.

    ``free_ms`` is when the devices must have room. If the devices are reserved for another job and ``free_ms`` is when
    that job has room, ``behind`` is that job. ``limited``: the job also waits for room under its limits
    (`Explanation.room`). ``room_ms`` is the later of the two times. Each time is None if it is unknown.

    ``rivals`` is the number of earlier jobs that may take the room; 0 if there is enough room for them too. ``at_ms``
    is when the job may start; it is known only without rivals. ``in_vain`` are blockers that have outlasted a
    reservation, so that no device is reserved for their end any more.
    """

    devices: tuple[str, ...]
    at_ms: int | None = None
    blockers: tuple[int, ...] = ()
    in_vain: tuple[int, ...] = ()
    room_ms: int | None = None
    rivals: int = 0
    free_ms: int | None = None
    limited: bool = False
    behind: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitReached:
    """A limit that leaves a job no room: *runs* hold *used* of *most*, and *asked* is more than the rest.

    ``whose`` is a user, or ``@`` and a group. ``reserved_for`` is the job for which the remaining room is reserved;
    None if the room is not there at all.
    """

    whose: str
    measure: Measure
    used: int
    most: int
    asked: int
    runs: tuple[int, ...] = ()
    reserved_for: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RoomUnderLimits:
    """When a job has room under all its limits: after ``runs`` have ended, at ``at_ms`` at the latest.

    ``at_ms`` is None if one of the runs has no time limit, or if the room is reserved for the job ``reserved_for``,
    which must start or leave the queue first.
    """

    at_ms: int | None = None
    runs: tuple[int, ...] = ()
    reserved_for: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Preemption:
    """Preemption of a job that does not wait: by which job (None: none), by when, and how often so far."""

    by: int | None = None
    deadline_ms: int | None = None
    times: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Why a job does not run.

    The jobs before it are ``higher`` jobs of higher priority, ``theirs`` jobs of ``users_before`` users with less usage
    at the same priority, and ``own_before`` jobs of its own user. ``priority`` is the current priority of the job.

    ``start`` is None if no device can have room under present conditions. ``limits`` are the limits that block the job.
    ``room`` is when there is room under all of them; None without limits.
    ``preemption`` is None for a waiting job.

    ``waits_since_ms`` is since when the job has waited for its turn, which decides about reservations. The time on hold
    and the time spent waiting for another job or a start time do not count. None if the job does not wait for its turn.

    ``reserve_from_ms``: no device is reserved for any job before this time, because many were reserved before. None if
    devices may be reserved now.
    """

    job_id: int
    state: JobState
    priority: Priority
    higher: int = 0
    users_before: int = 0
    theirs: int = 0
    own_before: int = 0
    start: Start | None = None
    devices: tuple[Verdict, ...] = ()
    limits: tuple[LimitReached, ...] = ()
    room: RoomUnderLimits | None = None
    preemption: Preemption | None = None
    waits_since_ms: int | None = None
    reserve_from_ms: int | None = None

    def behind(self, members: int) -> Explanation:
        """Return the explanation for a member of this array that has *members* other members before it."""
        if not members:
            return self
        start = self.start and replace(self.start, rivals=self.start.rivals + members, at_ms=None)
        return replace(self, own_before=self.own_before + members, start=start)

    @property
    def before(self) -> int:
        """The number of jobs before it."""
        return self.higher + self.theirs + self.own_before

    @property
    def has_room(self) -> bool:
        """Whether there is room for it now, which the jobs before it may take."""
        return self.start is not None and not self.start.blockers and not self.start.limited

    @property
    def limit(self) -> LimitReached | None:
        """The first limit that blocks the job."""
        return self.limits[0] if self.limits else None

    @property
    def runs_in_the_way(self) -> tuple[int, ...]:
        """The runs that must end first, on the devices and under the limits; empty if no start is known."""
        if self.start is None:
            return ()
        under = self.room.runs if self.room is not None and self.start.limited else ()
        return tuple(sorted({*self.start.blockers, *under}))


def explanation(job_id: int, reply: str) -> Explanation:
    """Return the reply of ``why.lua`` as a value."""
    plain = json.loads(reply, object_hook=_with_numbers)
    for name, kind in (("start", Start), ("room", RoomUnderLimits), ("preemption", Preemption)):
        if name in plain:
            plain[name] = kind(**plain[name])
    plain["state"], plain["priority"] = JobState(plain["state"]), Priority(plain["priority"])
    plain["devices"] = tuple(map(_verdict, plain.get("devices", ())))
    limits = ({**each, "measure": Measure(each["measure"])} for each in plain.get("limits", ()))
    plain["limits"] = tuple(LimitReached(**each) for each in limits)
    return Explanation(job_id=job_id, **plain)


def _verdict(plain: dict[str, Any]) -> Verdict:
    priorities = ({"priority": Priority(run["priority"])} if "priority" in run else {} for run in plain.get("runs", ()))
    runs = tuple(
        Occupant(**{**run, **priority}) for run, priority in zip(plain.get("runs", ()), priorities, strict=True)
    )
    return Verdict(**{**plain, "obstacle": Obstacle(plain["obstacle"]), "runs": runs})


#: Fields of a reply that hold names, which may look like numbers.
_NAMES = frozenset({"device", "devices", "host", "whose", "cannot_start"})


def _with_numbers(plain: dict[str, Any]) -> dict[str, Any]:
    """Return an object of the reply with numbers for ids, bytes and times, which are strings in the reply."""
    return {name: _value(name, value) for name, value in plain.items()}


def _value(name: str, value: Any) -> Any:
    if name in _NAMES:
        return tuple(value) if isinstance(value, list) else value
    if isinstance(value, list) and isinstance(value[0], str):  # ids
        return tuple(sorted(set(map(int, value))))
    return int(value) if isinstance(value, str) and value.removeprefix("-").isdecimal() else value
