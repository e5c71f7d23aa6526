"""The rules of the site: how usage is counted, permissions, and limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, cast

from gpuqueue.lazy.imports import later
from gpuqueue.model.placement import Preference
from gpuqueue.model.shares import Shares
from gpuqueue.queue import keys
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.store import Store, answering, to_ms
from gpuqueue.settings.settings import Settings

if TYPE_CHECKING:
    from gpuqueue.model import limits as limiting
    from gpuqueue.model.limits import Limits
    from gpuqueue.model.measures import Use
    from gpuqueue.queue import replies
else:
    limiting = later("gpuqueue.model.limits")
    replies = later("gpuqueue.queue.replies")


class Rules:
    """The rules that apply to all jobs, and what each user has used of the limits."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @answering
    def set_policy(
        self,
        *,
        half_life_s: float,
        urgent: Collection[str] | None,
        shares: Mapping[str, float],
        placement: Preference | None = None,
        admins: str = "",
        extend_s: float | None = None,
        borrows: bool = False,
    ) -> bool:
        """Set how usage is counted, and the permissions; return whether the half-life or the shares changed.

        *half_life_s* is the half-life of usage, in seconds. *urgent*: users that may use the priority urgent, None for
        all. *placement*: placement of jobs on one device, None for the first device that claims them. *admins*: users
        that may change the jobs of others, separated by commas; ``*`` for all. *extend_s*: how much an owner may add to
        the time limit of a running job, None for any. *borrows*: whether engines may lend devices that nobody knows
        yet, so that no job is impossible for lack of one.
        """
        others = {user: share for user, share in shares.items() if share != 1}
        pairs = [word for user, share in sorted(others.items()) for word in (user, max(1, round(share * 1000)))]
        who = "*" if urgent is None else ",".join(sorted(urgent))
        where = placement.letter if placement else ""
        extend_ms = "" if extend_s is None else to_ms(extend_s)
        words = (to_ms(half_life_s), who, where, admins, extend_ms, int(borrows))
        return bool(self._store.scripts.run("set_policy", *words, *pairs))

    @answering
    def admins(self) -> str:
        """Return the users that may change the jobs of others, as set by the last :meth:`set_policy`."""
        return cast("str | None", self._store.client.hget(keys.META, "admins")) or ""

    @answering
    def set_limits(self, limits: Limits) -> bool:
        """Replace all limits with *limits*; return whether they changed."""
        words = [word for pair in sorted(limits.to_fields().items()) for word in pair]
        return bool(self._store.scripts.run("set_limits", *words))

    @answering
    def limits(self) -> Limits:
        """Return the current limits."""
        hashes = (self._store.client.hgetall(key) for key in (keys.LIMITS, keys.SUBMIT_LIMITS))
        fields = {name: text for each in hashes for name, text in cast("dict[str, str]", each).items()}
        return limiting.Limits.from_fields(fields)

    @answering
    def usage(self) -> dict[str, float]:
        """Return the usage of each user who has any, by which claims order users; the least served first."""
        pairs = cast("list[tuple[str, float]]", self._store.client.zrange(keys.FAIR, 0, -1, withscores=True))
        return dict(pairs)

    @answering
    def uses(self) -> dict[str, Use]:
        """Return what each user has running and waiting."""
        return replies.uses(self._store.scripts.run("usage"))


def send_rules(queue: JobQueue, settings: Settings) -> None:
    """Apply the rules in *settings* to all users from now on; the last call wins.

    Raises:
        Unreachable: the store does not answer, or it is neither open nor being rebuilt.
        BadRequest: the limits cannot be parsed.

    """
    queue.rules.set_policy(
        half_life_s=settings.half_life_s,
        urgent=None if settings.urgent == "*" else settings.urgent.split(","),
        shares=Shares.parse(settings.shares, settings.groups).by_user(),
        placement=settings.placement,
        admins=settings.admins,
        extend_s=settings.extend_s,
        borrows=bool(settings.burst),
    )
    queue.rules.set_limits(settings.site_limits())
