"""Periodic maintenance of the queue. Any process may run it, at any time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from gpuqueue.lazy.imports import later
from gpuqueue.model.job import JobState, Level
from gpuqueue.model.placement import Preference
from gpuqueue.queue import keys
from gpuqueue.queue.connect import answering
from gpuqueue.queue.store import Store

if TYPE_CHECKING:
    from gpuqueue.model import limits as limiting
    from gpuqueue.model import preemption
    from gpuqueue.model.limits import Limits, Use
    from gpuqueue.queue import replies
    from gpuqueue.queue.lease import Reservation
else:
    limiting, preemption = later("gpuqueue.model.limits"), later("gpuqueue.model.preemption")
    replies = later("gpuqueue.queue.replies")


class Ticks(Store):
    """The part of :class:`gpuqueue.queue.jobqueue.JobQueue` with the periodic tasks, so that no job waits for ever."""

    @answering
    def reap(
        self, *, loss_limit: int, lease_s: float, tick_s: float, passed_s: float | None = None, most: int = 100
    ) -> dict[int, JobState]:
        """Take back expired leases; return the jobs and their states afterwards.

        *passed_s* is the time since the caller's last call on its own monotonic clock, in seconds. The store's clock
        may have been set in between.
        """
        passed_ms = "" if passed_s is None else _ms(passed_s)
        reply = self._scripts.run("reap", loss_limit, _ms(lease_s), _ms(tick_s), most, passed_ms)
        return {int(job_id): JobState(state) for job_id, state in zip(reply[::2], reply[1::2], strict=True)}

    @answering
    def reserve(self, *, after_s: float, most: int) -> list[Reservation]:
        """Reserve room for at most *most* jobs per host that waited *after_s* seconds; return all reservations."""
        reply = self._scripts.run("reserve", _ms(after_s), most)
        return replies.reservations(reply)

    @answering
    def age(self, *, after_s: float, most: int = 200) -> int:
        """Promote jobs by one priority per *after_s* seconds of waiting, at most *most* jobs; return how many."""
        return int(self._scripts.run("promote", _ms(after_s), most))

    @answering
    def preempt(
        self, levels: Mapping[Level, Sequence[Level]], *, after_s: float, grace_s: float, most: int | None = None
    ) -> dict[int, int]:
        """Preempt runs of lower priority; return for each preempted job the job that takes its place.

        *levels* maps a priority to the priorities that it may preempt. A run shorter than *after_s* seconds, or of a
        job that was preempted *most* times, is not preempted. A preempted run has *grace_s* seconds to end.
        """
        most = preemption.MOST if most is None else most
        reply = self._scripts.run("preempt", _ms(after_s), _ms(grace_s), most, *preemption.words_of(levels))
        return {int(job_id): int(by) for job_id, by in zip(reply[::2], reply[1::2], strict=True)}

    @answering
    def set_policy(
        self,
        *,
        half_life_s: float,
        urgent: Collection[str] | None,
        shares: Mapping[str, float],
        placement: Preference | None = None,
        admins: str = "",
    ) -> bool:
        """Set how usage is counted, and the permissions; return whether the half-life or the shares changed.

        *half_life_s* is the half-life of usage, in seconds. *urgent*: users that may use the priority urgent, None for
        all. *placement*: placement of jobs on one device, None for the first device that claims them. *admins*: users
        that may change the jobs of others, separated by commas; ``*`` for all.
        """
        others = {user: share for user, share in shares.items() if share != 1}
        pairs = [word for user, share in sorted(others.items()) for word in (user, max(1, round(share * 1000)))]
        who = "*" if urgent is None else ",".join(sorted(urgent))
        where = placement.value if placement else ""
        return bool(self._scripts.run("set_policy", _ms(half_life_s), who, where, admins, *pairs))

    @answering
    def admins(self) -> str:
        """Return the users that may change the jobs of others, as set by the last :meth:`set_policy`."""
        return cast("str | None", self._redis.hget(keys.META, "admins")) or ""

    @answering
    def set_limits(self, limits: Limits) -> bool:
        """Replace all limits with *limits*; return whether they changed."""
        words = [word for pair in sorted(limits.to_fields().items()) for word in pair]
        return bool(self._scripts.run("set_limits", *words))

    @answering
    def limits(self) -> Limits:
        """Return the current limits."""
        return limiting.Limits.from_fields(cast("dict[str, str]", self._redis.hgetall(keys.LIMITS)))

    @answering
    def uses(self) -> dict[str, Use]:
        """Return what each user has running and waiting."""
        return replies.uses(self._scripts.run("usage"))


def _ms(duration_s: float) -> int:
    return round(duration_s * 1000)
