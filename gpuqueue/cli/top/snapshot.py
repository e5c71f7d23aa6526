"""The state of a site at one moment, as the screen shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime

from gpuqueue.client import Client
from gpuqueue.errors import JobNotFound
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.history_query import Sort
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.progress import Progress
from gpuqueue.model.run import Listing, RunDevice
from gpuqueue.queue.lease import DeviceStatus

#: Most jobs in a snapshot, beside those that hold a device.
MOST_JOBS = 500
#: Number of ended jobs in a snapshot that has them.
ENDED_JOBS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Devices, live jobs and their progress.

    ``held_bytes`` is the last sample of each running job's memory, summed over its devices. ``more`` means that there
    are more jobs than the snapshot has.
    """

    at: datetime
    devices: tuple[DeviceStatus, ...]
    jobs: tuple[Job, ...]
    progress: Mapping[int, Progress] = field(default_factory=dict)
    held_bytes: Mapping[int, int] = field(default_factory=dict)
    more: bool = False
    #: The jobs that ended last, the latest first, if asked for.
    ended: tuple[Job, ...] = ()
    #: Devices of each running job.
    runs_on: Mapping[int, tuple[RunDevice, ...]] = field(default_factory=dict)

    @property
    def listing(self) -> Listing:
        """Return the jobs with the memory and devices of those that run."""
        return Listing(at=self.at, jobs=self.jobs, held_bytes=self.held_bytes, devices=self.runs_on)

    def without_secrets(self) -> Snapshot:
        """Return the snapshot as it is printed: its jobs without secrets."""
        return replace(self, jobs=tuple(job.without_secrets() for job in self.jobs))


def take(client: Client, *, user: str | None = None, ended: bool = False) -> Snapshot:
    """Take a snapshot of the site, with only the jobs of *user* if given. *ended*: with the jobs that ended last."""
    devices = tuple(client.devices.list())
    listing = client.jobs.listing(user=user, limit=MOST_JOBS + 1)
    found = {job.id: job for job in listing.jobs}
    more = len(found) > MOST_JOBS
    for job_id in sorted({each for device in devices for each in device.jobs} - found.keys()):
        job = _known(client, job_id)  # a running job that is not among the listed ones
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
        progress=client.logs.progress(jobs, None if more else listing.logs),
        held_bytes=held,
        more=more,
        ended=_ended(client, user) if ended else (),
        runs_on=listing.devices,
    )


def _ended(client: Client, user: str | None) -> tuple[Job, ...]:
    states = [state for state in JobState if state.is_end]
    found = client.history.search(user=user, states=states, sort=Sort.ENDED, limit=ENDED_JOBS)
    return tuple(record.job for record in found)


def _known(client: Client, job_id: int) -> Job | None:
    try:
        return client.jobs.get(job_id)
    except JobNotFound:
        return None
