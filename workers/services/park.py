"""Leaves this machine's runs to their shims for a long time: nobody will vouch for them, and nobody may take them."""

from __future__ import annotations

import time

from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Offer
from gpuqueue.settings.settings import Settings
from workers.run.directory import unsettled

#: A shim lets go before its lease expires, here as everywhere.
SHIM_SHARE = 0.7


def park(settings: Settings, for_s: float) -> int:
    """Vouch for all runs of this host for *for_s* seconds, renew their leases for longer; return how many there are.

    The workers must have left before: their next beat would shorten the lease again, as that of the next
    worker will.
    """
    queue = JobQueue(settings.redis_url)
    statuses = {status.device.uuid: status for status in queue.devices(settings.host)}
    parked = 0
    for directory in unsettled(settings.runs_dir):
        held = directory.held()
        if held is None or held.devices[0].uuid not in statuses:
            continue
        lead = statuses[held.devices[0].uuid]
        nothing_to_promise = Offer(
            device=lead.device,
            host=lead.host,
            headroom_bytes=lead.headroom_bytes,
            foreign_bytes=lead.device.total_bytes,
            slots=lead.slots,
            pool=lead.pool,
        )
        observed = {device.uuid: 0 for device in held.devices}
        alive = Alive(job_id=held.job_id, token=held.token, observed=observed)
        queue.beat(nothing_to_promise, [alive], lease_s=settings.lease_s)
        if queue.park(held.job_id, held.token, lease_s=for_s / SHIM_SHARE):
            directory.vouch(time.monotonic() + for_s)
            directory.close()
            parked += 1
    queue.close()
    return parked
