"""What a site says of its queue, told to the store: how usage is counted, who may what, what is limited."""

from __future__ import annotations

from gpuqueue.model.shares import Shares
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings


def tell_rules(queue: JobQueue, settings: Settings) -> None:
    """Let what *settings* say hold from now on, for everybody; whoever tells last is heard.

    Raises:
        Unreachable: the store does not answer, or is not open and nobody is about to open it.
        BadRequest: the limits are written so that nobody can read them.

    """
    queue.set_policy(
        half_life_s=settings.half_life_s,
        urgent=None if settings.urgent == "*" else settings.urgent.split(","),
        shares=Shares.parse(settings.shares, settings.groups).by_user(),
        placement=settings.placement,
        admins=settings.admins,
    )
    queue.set_limits(settings.site_limits())
