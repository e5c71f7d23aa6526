"""Why jobs wait for a device, and how much memory runs use: read for all jobs at once, in two steps.

The first step, :func:`ask`, adds its commands to any pipeline. The second step, :meth:`Surroundings.ask_devices`, reads
the devices that the first step found; its pipeline may contain other commands too.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuqueue.codec import device_from_plain
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job, WaitReason
from gpuqueue.queue import keys
from gpuqueue.queue.device_matching import takers
from gpuqueue.text.json_fields import loaded

if TYPE_CHECKING:
    from gpuqueue.model import limits as limiting
    from gpuqueue.model.device import Device
    from gpuqueue.model.limits import Use
    from gpuqueue.queue import limit_matching as meeting
    from gpuqueue.queue import replies
else:
    limiting = later("gpuqueue.model.limits")
    meeting = later("gpuqueue.queue.limit_matching")
    replies = later("gpuqueue.queue.replies")

#: A device whose worker was silent for longer takes no jobs, in milliseconds (as in ``lua/shared/capacity.lua``).
SEEN_MS = 15_000


def ask(pipe: Any) -> None:
    """Add commands to *pipe* that read the store's clock, the devices, and what keeps jobs from them."""
    pipe.time()
    pipe.hvals(keys.FACTS)
    pipe.hkeys(keys.DRAINED)
    pipe.hgetall(keys.KEPT)
    pipe.hmget(keys.META, "claims", "reap")
    pipe.hgetall(keys.LIMITS)


def announced(facts: Iterable[str]) -> list[tuple[str, Device]]:
    """Return the host and the device of each announcement; skip unreadable ones."""
    found = []
    for text in facts:
        with contextlib.suppress(Unreadable):
            plain = loaded(text, "a device")
            found.append((plain.text("host"), device_from_plain(plain.plain("device"))))
    return found


def is_paused(claims_ms: int | None, ticked_ms: int | None, *, now_ms: int) -> bool:
    """Return whether claims are paused, by the fields ``claims`` and ``reap`` of the store's ``meta`` hash.

    As ``pausing`` in ``lua/shared/state.lua``: a pause lasts until the first tick after its end.
    """
    return (claims_ms or 0) > min(now_ms, ticked_ms or 0)


@dataclass(frozen=True, slots=True)
class _Room:
    """The free memory of a device now, its free slots and its runs. As ``promise`` in ``lua/shared/state.lua``.

    ``gives_bytes`` is the memory that an exclusive job gets.
    """

    free_bytes: int
    slots: int
    runs: int
    gives_bytes: int
    #: Time of the last heartbeat, on the store's clock; None if the record is damaged.
    seen_ms: int | None

    @classmethod
    def of(cls, record: str, leases: Mapping[str, str]) -> _Room:
        """Return the room from a device's record and its leases; damaged ones give no room."""
        try:
            total, headroom, foreign, seen_ms, slots = map(int, record.split(":")[:5])
            free_bytes = total - headroom - foreign
            for lease in leases.values():
                allocated, observed, *more = lease.split(":")  # more: its end, x if it is exclusive, the nonce
                free_bytes -= max(int(allocated), int(observed))
                if more[1:2] == ["x"]:
                    free_bytes = min(free_bytes, 0)
        except ValueError:
            return cls(0, 0, len(leases), 0, None)
        return cls(free_bytes, slots - len(leases), len(leases), total - headroom, seen_ms)


class Surroundings:
    """The replies. ``now_ms`` is the store's clock, ``held_bytes`` the memory of each run in its last sample."""

    def __init__(self, answers: Sequence[Any]) -> None:
        """Take the replies to :func:`ask`."""
        (seconds, micros), facts, drained, kept, claims, limits = answers
        self.now_ms = int(seconds) * 1000 + int(micros) // 1000
        self._limits = limits
        self._paused = is_paused(*(int(each or 0) for each in claims), now_ms=self.now_ms)
        self.held_bytes: dict[int, int] = {}
        self._announced = announced(facts)
        self._records: list[tuple[Device, str]] = []
        #: By UUID: the host, and the room for new jobs.
        self._room: dict[str, tuple[str, _Room]] = {}
        self._drained = set(drained)
        #: By UUID: the job that the device is reserved for.
        self._kept = {device: reservation.partition(":")[0] for device, reservation in kept.items()}
        #: The reservation under a limit, by user or group.
        self._rooms: Mapping[str, str] = {}

    def ask_devices(self, pipe: Any) -> int:
        """Add commands to *pipe* that read the records and leases of the devices; return the number of replies.

        If limits are set, also read the reservations under them.
        """
        for host, device in self._announced:
            pipe.hget(keys.host_devices(host), device.uuid)
            pipe.hgetall(keys.device_leases(device.uuid))
        if self._limits:
            pipe.hgetall(keys.KEPT_ROOM)
        return 2 * len(self._announced) + bool(self._limits)

    def take_devices(self, answers: Sequence[Any]) -> None:
        """Take the replies to :meth:`ask_devices`."""
        if self._limits:
            *answers, self._rooms = answers
        for (host, device), record, leases in zip(self._announced, answers[::2], answers[1::2], strict=True):
            if record:
                self._records.append((device, record))
                self._room[device.uuid] = host, _Room.of(record, leases)
            self._add_held(leases)

    def _add_held(self, leases: Mapping[str, str]) -> None:
        for job_id, lease in leases.items():
            with contextlib.suppress(ValueError, IndexError):  # skip a damaged lease
                known = self.held_bytes.get(int(job_id), 0)
                self.held_bytes[int(job_id)] = known + int(lease.split(":")[1])

    def reason(self, job: Job, uses: Callable[[], Mapping[str, Use]]) -> WaitReason | None:
        """Return why *job* waits; replace the reason MEMORY if there is a more precise one. *uses* returns all uses."""
        if job.reason is not WaitReason.MEMORY:
            return job.reason
        found = takers(job.spec, [(device, replies.pool(record)) for device, record in self._records])
        if not found:
            return WaitReason.DEVICE
        return WaitReason.PAUSE if self._paused else self._in_the_way(job, found, uses)

    def _in_the_way(self, job: Job, found: Sequence[str], uses: Callable[[], Mapping[str, Use]]) -> WaitReason:
        found = self._small_enough(job, found)
        if not found:
            return WaitReason.LIMIT
        if self._lets_too_few(job, found, self._drained):
            return WaitReason.DRAINED
        if self._lets_too_few(job, found, self._drained | {each for each in found if self._is_silent(each)}):
            return WaitReason.SILENT
        if self._limits and self._is_over_a_limit(job, found, uses):
            return WaitReason.LIMIT
        for_others = {device for device, job_id in self._kept.items() if job_id != str(job.id)}
        has_room = {each for each in found if each not in self._drained and self._has_room(job, each)}
        if self._are_enough(job, has_room) and not self._are_enough(job, has_room - for_others):
            return WaitReason.RESERVATION
        has_memory = {each for each in found if each not in self._drained and self._has_memory(job, each)}
        only_slots = self._are_enough(job, has_memory) and not self._are_enough(job, has_room)
        return WaitReason.SLOTS if only_slots else WaitReason.MEMORY

    def _small_enough(self, job: Job, found: Sequence[str]) -> Sequence[str]:
        """Return those of *found* that are not too large for the pool of an exclusive *job*."""
        if not self._limits or not job.spec.placement.exclusive:
            return found
        most = limiting.Limits.from_fields(self._limits).of_pool(job.spec.pool).max_mem_bytes
        return found if most is None else [each for each in found if self._room[each][1].gives_bytes <= most]

    def _has_room(self, job: Job, device: str) -> bool:
        """Return whether *job* could start on a device now, ignoring reservations."""
        _, room = self._room[device]
        return room.slots > 0 and self._has_memory(job, device)

    def _has_memory(self, job: Job, device: str) -> bool:
        """Return whether *job* could start on a device now, ignoring reservations and slots."""
        _, room = self._room[device]
        is_alone = not room.runs or not job.spec.placement.exclusive
        return is_alone and room.free_bytes >= job.spec.shape.mem_bytes

    def _are_enough(self, job: Job, devices: Iterable[str]) -> bool:
        """Return whether a host has as many of *devices* as *job* needs."""
        by_host = Counter(self._room[each][0] for each in devices)
        return max(by_host.values(), default=0) >= job.spec.gpus

    def _is_silent(self, device: str) -> bool:
        seen_ms = self._room[device][1].seen_ms
        return seen_ms is not None and abs(self.now_ms - seen_ms) > SEEN_MS

    def _lets_too_few(self, job: Job, found: Sequence[str], shut: Collection[str]) -> bool:
        """Return whether *job* lacks devices only because those in *shut* take no jobs."""
        left = [each for each in found if each not in shut]
        return not left or (self._are_enough(job, found) and not self._are_enough(job, left))

    def _is_over_a_limit(self, job: Job, found: Sequence[str], uses: Callable[[], Mapping[str, Use]]) -> bool:
        limits = limiting.Limits.from_fields(self._limits)
        if not limits.users and not limits.groups:
            return False
        asked = meeting.use_of(job.spec, (self._room[each][1].gives_bytes for each in found))
        kept = {whose: meeting.kept_from(job, text, now_ms=self.now_ms) for whose, text in self._rooms.items()}
        return bool(limits.over(job.spec.account.name, asked, uses(), kept))
