"""Retries jobs that have ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.client import validation
from gpuqueue.client.choosing import Choosing
from gpuqueue.client.submitting import Submitting
from gpuqueue.client.waiting import Waiting
from gpuqueue.errors import BadRequest, Refused, Unreadable
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.dependencies import Waits
from gpuqueue.model.job import Job, JobState, Level
from gpuqueue.system.git_checkout import CheckoutLook
from gpuqueue.text.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuqueue.model.job_ref import JobName
    from gpuqueue.model.run import Record

#: The end states of members that a retry of an array runs again.
FAILED = (JobState.FAILED, JobState.LOST)


class Retrying(Submitting, Choosing, Waiting):
    """Submits an ended job again."""

    def retry(
        self,
        job: int | str,
        *,
        mem: str | int | None = None,
        time_limit: str | float | None = None,
        level: Level | None = None,
        found: Callable[[Job], None] | None = None,
    ) -> Job:
        """Submit the request of an ended job as a new job, and return the new job.

        The new job has the command, directory and environment of the first submission, and belongs to this account.
        It has no dependencies and no earliest start. For an array, or a part of one, the new job is an array of the
        members that failed or were lost.

        Args:
            job: A job, an array, a member or a part of an array.
            mem: See :meth:`submit`. None keeps the old value.
            time_limit: See :meth:`submit`. None keeps the old value.
            level: See :meth:`submit`. None keeps the old value.
            found: See :meth:`submit`.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job has not ended or belongs to another user, no member failed, or a limit forbids the new job.
            Unreadable: the job's request cannot be read any more.
            BadRequest: an argument is malformed.
            Impossible: see :meth:`submit`.

        """
        name = validation.job_name(job)
        before = self.get(name.id if name.part is not None and name.member is None else job)
        self._must_be_over(before, name)
        spec = before.spec
        if not self.may_change(spec.account.name):
            whose = spec.account.name
            raise Refused(
                f"job {name} is {whose}'s: only {whose} may run it again, or an administrator of this site (setting "
                f"admins), for it runs with the environment of {whose}"
            )
        if not spec.env:  # the placeholder for an unreadable request has no environment
            raise Unreadable(f"what job {name} asked for cannot be read any more: submit it anew")
        changes: dict[str, Any] = {
            "mem_bytes": parse_bytes(mem) if isinstance(mem, str) else mem,
            "time_limit_s": validation.time_limit(time_limit),
            "level": level,
        }
        again = replace(
            spec,
            account=self.account,
            waits=Waits(dedupe=spec.waits.dedupe),
            retry_of=before.id,
            tags=before.tags,
            git=CheckoutLook(Path(spec.cwd)).seen() if self.settings.git and spec.git is not None else None,
            array=None if spec.array is None else self._failed(before, spec.array, name),
            **{field: value for field, value in changes.items() if value is not None},
        )
        return self._queued(again, found)

    def _must_be_over(self, job: Job, name: JobName) -> None:
        several = name.part is not None and name.member is None
        if several and job.spec.array is None:
            raise BadRequest(f"job {name.id} is no array: there is no part {name}")
        if job.state.is_end or several:  # a part may still have active members: only its failed ones are retried
            return
        remedy = (
            f"gpuqueue edit {name.id} changes what it asks for"
            if job.state in {JobState.QUEUED, JobState.HELD}
            else f"gpuqueue cancel {name} ends it, gpuqueue wait {name} waits for its end"
        )
        raise Refused(f"job {name} is {job.state}: only a job that has ended can be retried; {remedy}")

    def _failed(self, job: Job, array: Array, name: JobName) -> Array:
        """Return *array* with only the members that failed, limited to the part that *name* names."""
        if job.state.is_end:
            self.recorded(job)  # wait for the history, which may lag
        members = (record.job.member for record in self._failed_members(job.id, len(array)))
        failed = Indexes.of(each.index for each in members if each and (name.part is None or each.index in name.part))
        if not failed.ranges:
            raise Refused(f"no member of {name} failed or was lost: there is nothing to retry; one by name can be")
        try:
            return replace(array, indexes=failed)
        except BadRequest as error:
            raise Refused(
                f"{len(failed)} members of {name} failed, too scattered for one array: retry parts, such as "
                f"{name.id}_0-499"
            ) from error

    def _failed_members(self, array_id: int, most: int) -> list[Record]:
        from gpuqueue.model.history_query import HistoryQuery  # noqa: PLC0415 - lazy import: a submit needs no history

        return self.database.history(HistoryQuery(array_id=array_id, states=FAILED, limit=most))
