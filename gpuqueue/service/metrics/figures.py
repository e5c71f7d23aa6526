"""What one scrape reads of the store: counts of jobs, devices, the outbox, and the use of each user."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from gpuqueue.errors import StoreNotReady
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.measures import Use
from gpuqueue.queue.census import Census, census
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.settings.settings import Settings

#: Most devices and users that are reported one by one.
MOST_DEVICES, MOST_USERS = 1024, 200


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFigures:
    """The figures of one moment. ``unrecorded_s`` is None if no event waits for the history.

    ``users`` is None unless the setting ``metrics_users`` is on.
    """

    census: Census
    devices: tuple[DeviceStatus, ...]
    unrecorded: int
    unrecorded_s: float | None
    reserved_idle_device_s: float
    users: Mapping[str, Use] | None


def store_figures(queue: JobQueue, settings: Settings) -> StoreFigures:
    """Return the figures of the store.

    Raises:
        StoreUnreachable: the store does not answer.
        StoreNotReady: the store answers that it cannot serve.

    """
    if queue.epoch() is None:
        raise StoreNotReady("the store is not open")
    unrecorded, unrecorded_s = queue.outbox.backlog()
    return StoreFigures(
        census=census(queue),
        devices=tuple(queue.devices.all()),
        unrecorded=unrecorded,
        unrecorded_s=unrecorded_s,
        reserved_idle_device_s=queue.maintenance.reserved_idle_device_s(),
        users=queue.rules.uses() if settings.metrics_users else None,
    )


def is_open(settings: Settings) -> bool:
    """Return True if the store answers and is open; it never returns False.

    Raises:
        StoreUnreachable: the store does not answer.
        StoreNotReady: the store answers that it cannot serve.

    """
    with closing(JobQueue(settings.redis_url)) as queue:
        if queue.epoch() is None:
            raise StoreNotReady("the store is not open")
    return True
