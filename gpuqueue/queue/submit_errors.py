"""Why a request did not become a job, where the one who asked can do something about it."""

from __future__ import annotations

from gpuqueue.errors import BadRequest, JobNotFound
from gpuqueue.model.array import Member


class Found(Exception):
    """A job of this user with this dedupe key waits or runs already."""

    def __init__(self, job_id: int) -> None:
        super().__init__(f"job {job_id} has this dedupe key")
        self.job_id = job_id


class Unknown(JobNotFound):
    """Jobs that are to be waited for are not in the queue: never were, or ended long ago."""

    def __init__(self, job_ids: tuple[int, ...]) -> None:
        each = ", ".join(map(str, job_ids))
        super().__init__(f"there is no job {each} to wait for: see gpuqueue queue and gpuqueue history")
        self.job_ids = job_ids


def only_all_of_it(member: Member) -> BadRequest:
    """Return what to raise where a member is to be waited for, named by the id of its job."""
    return BadRequest(
        f"job {member.id} is {member}: of an array only all of it can be waited for: say {member.array_id}"
    )
