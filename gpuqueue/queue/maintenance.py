"""Periodic maintenance of the queue, so that no job waits for ever. Any process may run it, at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from gpuqueue.lazy.imports import later
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Priority
from gpuqueue.queue import keys
from gpuqueue.queue.store import Store, answering, to_ms

if TYPE_CHECKING:
    from gpuqueue.model import preemption
    from gpuqueue.queue import replies
    from gpuqueue.queue.lease import Reservation, Reservations
else:
    preemption = later("gpuqueue.model.preemption")
    replies = later("gpuqueue.queue.replies")


class Maintenance:
    """The periodic tasks: reap expired leases, reserve devices, promote and preempt."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @answering
    def reap(
        self, *, loss_limit: int, lease_s: float, tick_s: float, passed_s: float | None = None, most: int = 100
    ) -> dict[int, JobState]:
        """Take back expired leases; return the jobs and their states afterwards.

        *passed_s* is the time since the caller's last call on its own monotonic clock, in seconds. The store's clock
        may have been set in between.
        """
        passed_ms = "" if passed_s is None else to_ms(passed_s)
        reply = self._store.scripts.run("reap", loss_limit, to_ms(lease_s), to_ms(tick_s), most, passed_ms)
        return {int(job_id): JobState(state) for job_id, state in zip(reply[::2], reply[1::2], strict=True)}

    @answering
    def reserve(self, *, after_s: float, most: int, budget: float | None = None) -> list[Reservation]:
        """Reserve room for at most *most* jobs per host that waited *after_s* seconds; return all reservations."""
        return [*self.check_reservations(after_s=after_s, most=most, budget=budget).made]

    @answering
    def check_reservations(self, *, after_s: float, most: int, budget: float | None = None) -> Reservations:
        """Do as :meth:`reserve`, and return also when the next call may make a difference.

        *budget* is the part of all device time that may be idle because reserved, on average; None: any.
        """
        return replies.reservations(self._store.scripts.run("reserve", to_ms(after_s), most, f"{budget or 0.0:.4f}"))

    @answering
    def reserved_idle_device_s(self) -> float:
        """Return for how long devices were idle because they were reserved, in device-seconds.

        The sum begins when the store is opened. Of a device, the memory that was both reserved and free counts.
        """
        text = cast("str | None", self._store.client.hget(keys.META, "reserved_idle_ms"))
        return int(text) / 1000 if text and text.isdecimal() else 0.0

    @answering
    def promote(self, *, after_s: float, most: int = 200) -> int:
        """Promote jobs by one priority per *after_s* seconds of waiting, at most *most* jobs; return how many."""
        return int(self._store.scripts.run("promote", to_ms(after_s), most))

    @answering
    def preempt(
        self,
        priorities: Mapping[Priority, Sequence[Priority]],
        *,
        after_s: float,
        grace_s: float,
        most: int | None = None,
    ) -> dict[int, int]:
        """Preempt runs of lower priority; return for each preempted job the job that takes its place.

        *priorities* maps a priority to those that it may preempt. A run shorter than *after_s* seconds, or of a
        job that was preempted *most* times, is not preempted. A preempted run has *grace_s* seconds to end.
        """
        most = preemption.MOST if most is None else most
        reply = self._store.scripts.run(
            "preempt", to_ms(after_s), to_ms(grace_s), most, *preemption.words_of(priorities)
        )
        return {int(job_id): int(by) for job_id, by in zip(reply[::2], reply[1::2], strict=True)}

    @answering
    def has_turn(self, engine: str, holder: str, *, for_s: float) -> bool:
        """Return whether *holder* applies the rule of *engine* for the next *for_s* seconds.

        It does if nobody else has called this for so long.
        """
        client, key = self._store.client, f"{keys.BURSTING}:{engine}"
        if client.execute_command("SET", key, holder, "NX", "PX", to_ms(for_s)):
            return True
        if client.get(key) != holder:
            return False
        return bool(client.execute_command("PEXPIRE", key, to_ms(for_s)))
