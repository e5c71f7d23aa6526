"""Factories with a default for every field, so that a test names only the fields that it is about."""

from __future__ import annotations

from typing import Any

from gpuqueue.model.device import Device, DeviceKind
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim, DeviceStatus, Offer, Stray
from gpuqueue.queue.requests import new_nonce
from gpuqueue.system.account import current_account
from gpuqueue.text.units import GIB

ADA = Account(name="ada", uid=1000, host="laptop")
BOB = Account(name="bob", uid=1001, host="laptop")


def make_spec(**changes: Any) -> JobSpec:
    """Return a spec that asks for 1 GiB."""
    defaults: dict[str, Any] = {
        "argv": ("true",),
        "cwd": "/",
        "account": ADA,
        "mem_bytes": GIB,
        "name": "job",
        "env": {"PATH": "/usr/bin:/bin"},
    }
    return JobSpec(**{**defaults, **changes})


def make_device(uuid: str = "GPU-0", **changes: Any) -> Device:
    """Return a 24 GiB GPU."""
    defaults: dict[str, Any] = {
        "uuid": uuid,
        "index": 0,
        "name": "Test 24G",
        "kind": DeviceKind.GPU,
        "total_bytes": 24 * GIB,
    }
    return Device(**{**defaults, **changes})


def make_offer(uuid: str = "GPU-0", **changes: Any) -> Offer:
    """Return an offer of a whole, empty 24 GiB GPU."""
    defaults: dict[str, Any] = {
        "device": make_device(uuid),
        "host": "nodeA",
        "headroom_bytes": 0,
        "external_bytes": 0,
        "slots": 8,
    }
    return Offer(**{**defaults, **changes})


def make_admin(queue: JobQueue) -> None:
    """Make the account that runs the tests an administrator of the site, as root always is."""
    queue.rules.set_policy(half_life_s=604_800, urgent=None, shares={}, admins=current_account("here").name)


def make_status(uuid: str = "GPU-0", **changes: Any) -> DeviceStatus:
    """Return how the queue knows an empty 24 GiB GPU whose worker has just sent a heartbeat."""
    defaults: dict[str, Any] = {
        "device": make_device(uuid),
        "host": "nodeA",
        "worker": "w",
        "worker_pid": 1,
        "headroom_bytes": 0,
        "external_bytes": 0,
        "allocated_bytes": 0,
        "jobs": (),
        "slots": 8,
        "pool": "",
        "seen_s_ago": 0.0,
    }
    return DeviceStatus(**{**defaults, **changes})


def serve(queue: JobQueue, *offers: Offer, lease_s: float = 300, limits_jobs: bool | None = None) -> None:
    """Announce devices as their workers would."""
    for offer in offers or (make_offer(),):
        worker = f"worker-{offer.device.uuid}"
        queue.devices.announce(offer, worker=worker, pid=1, boot_id="boot", limits_jobs=limits_jobs)
        queue.devices.heartbeat(offer, [], lease_s=lease_s)


def claim(queue: JobQueue, uuid: str = "GPU-0", **changes: Any) -> Claim | None:
    """Claim a job for a device as its worker would."""
    offer = {name: changes.pop(name) for name in ("host", "external_bytes", "observed") if name in changes}
    defaults: dict[str, Any] = {"worker": f"worker-{uuid}", "lease_s": 300, "nonce": new_nonce()}
    return queue.runs.claim(make_offer(uuid, **offer), **{**defaults, **changes})


def must_claim(queue: JobQueue, uuid: str = "GPU-0", **changes: Any) -> Claim:
    """Claim a job for a device, and fail if there is none."""
    claimed = claim(queue, uuid, **changes)
    assert claimed is not None, "nothing to claim"
    return claimed


def submit(queue: JobQueue, **changes: Any) -> int:
    """Submit a job and return its id."""
    return queue.requests.submit(make_spec(**changes)).id


def job_of(queue: JobQueue, job_id: int) -> Job:
    """Return a job that must exist."""
    job = queue.jobs.get(job_id)
    assert job is not None, f"there is no job {job_id}"
    return job


def start(queue: JobQueue, run: Claim) -> JobState | None:
    """Report the start of a run as its worker would."""
    return queue.runs.started(run.job_id, run.token, lease_s=300, log_path="/l", devices=())


def end(queue: JobQueue, run: Claim, code: int = 0, **changes: Any) -> JobState | None:
    """Report the end of a run with this exit code as its worker would."""
    defaults: dict[str, Any] = {
        "state": JobState.FAILED if code else JobState.SUCCEEDED,
        "ending": Ending.from_status(code),
        "duration_s": 1.0,
        "devices": (),
    }
    return queue.runs.finish(run.job_id, run.token, **{**defaults, **changes})


def submit_and_claim(queue: JobQueue, uuid: str = "GPU-0", **changes: Any) -> Claim:
    """Submit a job, and claim the first job in the order for a device."""
    submit(queue, **changes)
    return must_claim(queue, uuid)


def offered(run: Claim, **changes: Any) -> Stray:
    """Return a claimed run as its worker would offer it to a store that has lost it."""
    defaults: dict[str, Any] = {
        "job_id": run.job_id,
        "token": run.token,
        "host": "nodeA",
        "worker": "w",
        "devices": tuple(RunDevice(uuid=uuid, lease_bytes=run.lease_bytes) for uuid in run.devices),
        "claimed_ms": run.claimed_ms,
        "log_path": "/l",
        "payload": run.payload,
    }
    return Stray(**{**defaults, **changes})
