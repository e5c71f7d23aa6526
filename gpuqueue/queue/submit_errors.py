"""Errors of refused requests that the submitter can act on."""

from __future__ import annotations

from gpuqueue.errors import BadRequest, JobNotFound
from gpuqueue.model.array import Member


class Found(Exception):
    """A job of this user with this dedupe key already waits or runs."""

    def __init__(self, job_id: int) -> None:
        super().__init__(f"job {job_id} has this dedupe key")
        self.job_id = job_id


class Unknown(JobNotFound):
    """Some dependencies are not in the queue: they never were, or they ended long ago."""

    def __init__(self, job_ids: tuple[int, ...]) -> None:
        each = ", ".join(map(str, job_ids))
        super().__init__(f"there is no job {each} to wait for: see gpuqueue queue and gpuqueue history")
        self.job_ids = job_ids


def whole_array_only(member: Member) -> BadRequest:
    """Return the error for a dependency on one array member, named by the id of its job."""
    return BadRequest(f"job {member.id} is {member}: a job can wait only for a whole array: write {member.array_id}")
