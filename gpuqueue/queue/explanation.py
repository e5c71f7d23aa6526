"""Why a job does not run: what ``why.lua`` finds, as values. Pure."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState, Level
from gpuqueue.model.limits import Measure


class Obstacle(str, Enum):
    """What keeps a job from a device. The first that does, in this order."""

    #: The job asks for another pool.
    POOL = "pool"
    #: The job wants another kind of device.
    KIND = "kind"
    #: The job names other devices.
    NAMED = "named"
    #: It is of another model than those that the job asks for.
    MODEL = "model"
    #: It is a part of a card, and a job on several devices cannot use one.
    PART = "part"
    #: It could not give so much memory if it were empty.
    TOO_SMALL = "too_small"
    #: The job would have all of it for itself, which is more than its pool's ``max_mem``.
    TOO_LARGE = "too_large"
    #: It takes no new job, by somebody's say.
    DRAINED = "drained"
    #: Its worker has not been heard for a while.
    SILENT = "silent"
    #: A run has it for itself.
    EXCLUSIVE = "exclusive"
    #: The job wants it for itself, and it is not alone there.
    OCCUPIED = "occupied"
    #: It cannot promise so much memory now.
    MEMORY = "memory"
    #: It runs as many jobs as it may.
    SLOTS = "slots"
    #: It is kept for a job that has waited too long, or for which others made place.
    KEPT = "kept"
    #: It has room, but too few others of its host have: the job wants several.
    ALONE = "alone"
    #: It has room, and a limit of the job's user or group leaves none.
    LIMIT = "limit"
    #: It could start there, but not yet: it waits for another job, for its time, or for a person.
    NOT_YET = "not_yet"
    #: Nothing does: the job starts there when it is its turn.
    FITS = "fits"

    def __str__(self) -> str:
        return self.value


#: What no end of another job changes: the device is none for this job.
NEVER_THERE = frozenset(
    {
        *(Obstacle.POOL, Obstacle.KIND, Obstacle.NAMED, Obstacle.MODEL),
        *(Obstacle.PART, Obstacle.TOO_SMALL, Obstacle.TOO_LARGE),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Occupant:
    """A run on a device: the bytes that it counts for, and when it must have ended (None: it has no time limit).

    ``made_place`` times its job made place for others; ``going``: it ends in any case, as it was cancelled or makes
    place now. ``level`` is the one that it counts as, which waiting may have lifted; None where that is not known.
    """

    job_id: int
    held_bytes: int
    ends_ms: int | None
    made_place: int = 0
    going: bool = False
    level: Level | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A device, and what keeps the job from it. ``capacity_bytes`` is what it could promise if no job ran there.

    ``place_made``: it is kept for ``kept_for`` since runs of lower levels made place for that job there; else because
    that job has waited too long.
    """

    device: str
    host: str
    obstacle: Obstacle
    available_bytes: int
    capacity_bytes: int
    total_bytes: int
    kept_for: int | None
    runs: tuple[Occupant, ...]
    place_made: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Where there will be room first, once the runs of ``blockers`` have ended. ``room_ms``: when there must be.

    ``free_ms`` is when the devices must have room; ``behind`` the job for which they are kept, where that is the moment
    at which that one has room. ``limited``: the job waits for room under its limits as well (`Explanation.room`);
    ``room_ms`` is the later of the two. Each is None where nobody can say.

    ``rivals`` of the jobs that go before this one may take that room; 0 where it is enough for them as well, and only
    then is ``at_ms``, when the job may start, known with it. ``in_vain``: those of the blockers for whose end devices
    were kept for so long that nothing is kept for it any more.
    """

    at_ms: int | None
    devices: tuple[str, ...]
    blockers: tuple[int, ...]
    in_vain: tuple[int, ...] = ()
    room_ms: int | None = None
    rivals: int = 0
    free_ms: int | None = None
    limited: bool = False
    behind: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitReached:
    """A limit that leaves a job no room: *used* of *most* is held by *runs*, and *asked* is more than what is left.

    ``whose`` is a user, or ``@`` and a group. ``kept_for`` is the job for which the room is kept that there is; None
    where there is none.
    """

    whose: str
    measure: Measure
    used: int
    most: int
    asked: int
    runs: tuple[int, ...]
    kept_for: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RoomUnderLimits:
    """When there is room under all limits in a job's way: once ``runs`` have ended, which they must have by ``at_ms``.

    ``at_ms`` is None where one of them has no time limit, or the room is kept for the job ``kept_for``, which must have
    started or gone first.
    """

    at_ms: int | None
    runs: tuple[int, ...] = ()
    kept_for: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MakingPlace:
    """Of a job that does not wait: for which job its run makes place (None: for none), by when, how often it has."""

    by: int | None
    deadline_ms: int | None
    times: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Why a job does not run.

    Before it in the order are ``higher`` jobs of higher levels, ``theirs`` of ``users_before`` users with less usage on
    its own level, and ``own_before`` of its own user. ``level`` is the one that it counts as of now.
    ``start`` is None where no device could ever have room as things stand, ``limit`` where none is in its way,
    ``making_place`` where it waits. ``more_limits`` are in its way as well as ``limit``; ``room`` is when there is room
    under all of them, None where there are none. ``waits_since_ms`` is since when it has waited for its turn, by which
    devices are kept for whoever waits long: neither being held counts, nor waiting for another job or its time. None
    where it does not.
    """

    job_id: int
    state: JobState
    level: Level
    higher: int
    users_before: int
    theirs: int
    own_before: int
    start: Start | None
    devices: tuple[Verdict, ...]
    limit: LimitReached | None = None
    more_limits: tuple[LimitReached, ...] = ()
    room: RoomUnderLimits | None = None
    making_place: MakingPlace | None = None
    waits_since_ms: int | None = None

    def behind(self, members: int) -> Explanation:
        """Return what is so of a member where this is so of its array, and so many *members* go before it."""
        if not members:
            return self
        start = self.start and replace(self.start, rivals=self.start.rivals + members, at_ms=None)
        return replace(self, own_before=self.own_before + members, start=start)

    @property
    def limits(self) -> tuple[LimitReached, ...]:
        """All limits in its way."""
        return () if self.limit is None else (self.limit, *self.more_limits)

    @property
    def runs_in_the_way(self) -> tuple[int, ...]:
        """The runs that must end first, on the devices and under the limits; none where no start can be told."""
        if self.start is None:
            return ()
        under = self.room.runs if self.room is not None and self.start.limited else ()
        return tuple(sorted({*self.start.blockers, *under}))
