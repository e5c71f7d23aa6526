"""Writes the site's rules from the settings to the store: usage counting, permissions and limits."""

from __future__ import annotations

from gpuqueue.model.shares import Shares
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings


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
    )
    queue.rules.set_limits(settings.site_limits())
