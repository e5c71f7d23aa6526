"""Parks this machine's runs: they continue for a long time without a worker, and no other worker may claim them."""

from __future__ import annotations

import time

from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Alive, Offer
from gpuqueue.settings.settings import Settings
from workers.run.directory import unsettled

#: The shim's deadline as a share of the lease. A shim ends its run before the lease expires.
SHIM_SHARE = 0.7


def park(settings: Settings, for_s: float) -> int:
    """Park all runs of this host for *for_s* seconds, and return how many were parked.

    Each shim gets a heartbeat that is valid for *for_s*, and each lease is renewed for longer. The workers must have
    stopped before, because a heartbeat of a worker shortens the lease again.
    """
    queue = JobQueue(settings.redis_url)
    statuses = {status.device.uuid: status for status in queue.devices.all(settings.host)}
    parked = 0
    for directory in unsettled(settings.runs_dir):
        held = directory.held()
        if held is None or held.devices[0].uuid not in statuses:
            continue
        lead = statuses[held.devices[0].uuid]
        nothing_to_allocate = Offer(
            device=lead.device,
            host=lead.host,
            headroom_bytes=lead.headroom_bytes,
            external_bytes=lead.device.total_bytes,
            slots=lead.slots,
            pool=lead.pool,
        )
        observed = {device.uuid: 0 for device in held.devices}
        alive = Alive(job_id=held.job_id, token=held.token, observed=observed)
        queue.devices.heartbeat(nothing_to_allocate, [alive], lease_s=settings.lease_s)
        if queue.runs.park(held.job_id, held.token, lease_s=for_s / SHIM_SHARE):
            directory.renew(time.monotonic() + for_s)
            directory.close()
            parked += 1
    queue.close()
    return parked
