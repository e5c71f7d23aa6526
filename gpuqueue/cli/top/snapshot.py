"""How a site stands at one moment: all that the screen shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from gpuqueue.client import Client
from gpuqueue.errors import JobNotFound
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import Job
from gpuqueue.model.job_page import Listing
from gpuqueue.model.progress import Progress
from gpuqueue.model.run import RunDevice
from gpuqueue.queue.lease import DeviceStatus

#: More waiting jobs than anybody scrolls through.
MOST_JOBS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Devices in the order of hosts, jobs that have not ended, and how far those are that say so.

    ``held_bytes`` is what each running job was last seen to hold, on all its devices together. ``more``: there are
    other jobs that wait.
    """

    at: datetime
    devices: tuple[DeviceStatus, ...]
    jobs: tuple[Job, ...]
    progress: Mapping[int, Progress] = field(default_factory=dict)
    held_bytes: Mapping[int, int] = field(default_factory=dict)
    more: bool = False
    #: Where each running job runs.
    runs_on: Mapping[int, tuple[RunDevice, ...]] = field(default_factory=dict)

    @property
    def listing(self) -> Listing:
        """Return the jobs, with what is known of those that run."""
        return Listing(at=self.at, jobs=self.jobs, held_bytes=self.held_bytes, devices=self.runs_on)


def take(client: Client, *, user: str | None = None) -> Snapshot:
    """Look at the site now; of the jobs only those of *user*, if one is named."""
    devices = tuple(client.devices())
    listing = client.listing(user=user, limit=MOST_JOBS + 1)
    found = {job.id: job for job in listing.jobs}
    more = len(found) > MOST_JOBS
    for job_id in sorted({each for device in devices for each in device.jobs} - found.keys()):
        job = _known(client, job_id)  # it runs, and waited behind more jobs than were listed
        if job is not None and not job.state.is_end and user in {None, job.spec.account.name}:
            found[job_id] = job
    jobs = tuple(found.values())
    held: dict[int, int] = {}
    for device in devices:
        for each in device.holdings:
            held[each.job_id] = held.get(each.job_id, 0) + each.observed_bytes
    return Snapshot(
        at=listing.at,
        devices=devices,
        jobs=jobs,
        progress=client.progress(jobs, None if more else listing.logs),
        held_bytes=held,
        more=more,
        runs_on=listing.devices,
    )


def _known(client: Client, job_id: int) -> Job | None:
    try:
        return client.get(job_id)
    except JobNotFound:
        return None
