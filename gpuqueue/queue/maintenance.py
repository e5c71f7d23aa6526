"""What is to be done from time to time, by anybody, as often as they like."""

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
    """The part of :class:`gpuqueue.queue.jobqueue.JobQueue` that keeps anybody from waiting for ever."""

    @answering
    def reap(
        self, *, loss_limit: int, lease_s: float, tick_s: float, passed_s: float | None = None, most: int = 100
    ) -> dict[int, JobState]:
        """Take back expired leases; return the jobs and their states after.

        *passed_s* went by since the caller last did so, on its own monotonic clock: the store's may have been set.
        """
        passed_ms = "" if passed_s is None else _ms(passed_s)
        reply = self._scripts.run("reap", loss_limit, _ms(lease_s), _ms(tick_s), most, passed_ms)
        return {int(job_id): JobState(state) for job_id, state in zip(reply[::2], reply[1::2], strict=True)}

    @answering
    def reserve(self, *, after_s: float, most: int) -> list[Reservation]:
        """Keep room for jobs that waited *after_s* and fit nowhere, for *most* on each host; return what stands."""
        reply = self._scripts.run("reserve", _ms(after_s), most)
        return replies.reservations(reply)

    @answering
    def age(self, *, after_s: float, most: int = 200) -> int:
        """Lift jobs by a level for each *after_s* that they have waited, at most *most* now; return how many."""
        return int(self._scripts.run("promote", _ms(after_s), most))

    @answering
    def preempt(
        self, levels: Mapping[Level, Sequence[Level]], *, after_s: float, grace_s: float, most: int | None = None
    ) -> dict[int, int]:
        """Let jobs take the place of runs on lower *levels*; return which run's job makes place for which.

        A run that has not lasted for *after_s*, or whose job made place *most* times, goes on. Others have *grace_s*.
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
        """Count usage so from now on; return whether that is new.

        *urgent*: who may use that level, None anybody. *placement*: where jobs on one device go, None to whoever looks.
        *admins*: who may change the jobs of others: users separated by commas, ``*`` everybody.
        """
        others = {user: share for user, share in shares.items() if share != 1}
        pairs = [word for user, share in sorted(others.items()) for word in (user, max(1, round(share * 1000)))]
        who = "*" if urgent is None else ",".join(sorted(urgent))
        where = placement.value if placement else ""
        return bool(self._scripts.run("set_policy", _ms(half_life_s), who, where, admins, *pairs))

    @answering
    def admins(self) -> str:
        """Return who may change the jobs of others, as :meth:`set_policy` was told last."""
        return cast("str | None", self._redis.hget(keys.META, "admins")) or ""

    @answering
    def set_limits(self, limits: Limits) -> bool:
        """Let these limits hold from now on, and no others; return whether that is new."""
        words = [word for pair in sorted(limits.to_fields().items()) for word in pair]
        return bool(self._scripts.run("set_limits", *words))

    @answering
    def limits(self) -> Limits:
        """Return the limits that hold."""
        return limiting.Limits.from_fields(cast("dict[str, str]", self._redis.hgetall(keys.LIMITS)))

    @answering
    def uses(self) -> dict[str, Use]:
        """Return what each user has running and waiting."""
        return replies.uses(self._scripts.run("usage"))


def _ms(duration_s: float) -> int:
    return round(duration_s * 1000)
