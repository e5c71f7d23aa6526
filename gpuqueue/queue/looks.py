"""Jobs as they stand, and why they wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.errors import Unreadable
from gpuqueue.job import Job, WaitReason
from gpuqueue.later import later
from gpuqueue.queue import keys
from gpuqueue.queue.connect import answering
from gpuqueue.queue.fleet import Fleet
from gpuqueue.queue.matching import takers
from gpuqueue.queue.recovery import Recovery
from gpuqueue.queue.ticks import Ticks

if TYPE_CHECKING:
    import logging

    from gpuqueue.queue import limiting, replies, survivors
    from gpuqueue.queue.explanation import Explanation
    from gpuqueue.run import Record
else:
    limiting = later("gpuqueue.queue.limiting")
    logging = later("logging")
    replies = later("gpuqueue.queue.replies")
    survivors = later("gpuqueue.queue.survivors")


class Looks(Recovery, Fleet, Ticks):
    """The part of :class:`gpuqueue.queue.jobqueue.JobQueue` that changes nothing."""

    @answering
    def get(self, job_id: int) -> Job | None:
        """Return the job as it stands, or None if the queue does not know it (any more).

        Raises:
            Unreadable: the store knows it, but its entry makes no sense.

        """
        fields, spec = next(self._entries([job_id]))
        return self._with_reasons([replies.job(job_id, fields, spec)])[0] if fields else None

    @answering
    def record(self, job_id: int) -> Record | None:
        """Return the job with its current or last run, as far as the store tells; None if it does not know it."""
        fields, spec = next(self._entries([job_id]))
        found = survivors.survivor(job_id, fields, spec) if fields else None
        return None if found is None else found.record

    @answering
    def why(self, job_id: int) -> Explanation | None:
        """Return why a job does not run, by the rules and figures of a claim; None if the queue does not know it."""
        reply = self._scripts.run("why", job_id)
        return replies.explanation(job_id, reply) if reply else None

    @answering
    def live(self, *, limit: int = 1000, after: int = 0) -> list[Job]:
        """Return at most *limit* jobs that the book has not taken over, oldest first, from above the id *after*.

        A job whose entry makes no sense does not hide the others; it is told in the log.
        """
        return self.page(limit=limit, after=after)[0]

    @answering
    def page(self, *, limit: int = 1000, after: int = 0) -> tuple[list[Job], int | None]:
        """Return what :meth:`live` returns, and the id to go on *after*, None where there are no more."""
        ids = self._live_ids(after, limit)
        found = []
        for job_id, (fields, spec) in zip(ids, self._entries(ids), strict=True):
            try:
                if fields:
                    found.append(replies.job(int(job_id), fields, spec))
            except Unreadable as error:
                logging.getLogger(__name__).warning("%s", error)
        return self._with_reasons(found), int(ids[-1]) if ids else None

    def _with_reasons(self, jobs: list[Job]) -> list[Job]:
        """Return *jobs*; of those that wait, say which wait for something else than memory."""
        if all(job.reason is not WaitReason.MEMORY for job in jobs):
            return jobs
        devices, drained, kept = self._known(), self._drained(), self._kept()
        others = WaitReason.PAUSE if self.pause_left_s() else WaitReason.MEMORY
        limits = self.limits()
        uses = self.uses() if limits.users or limits.groups else {}

        def reason(job: Job) -> WaitReason | None:
            if job.reason is not WaitReason.MEMORY:
                return job.reason
            found = takers(job.spec, devices)
            if not found:
                return WaitReason.DEVICE
            if drained.issuperset(found):
                return WaitReason.DRAINED
            if limits.over(job.spec.account.name, limiting.use_of(job.spec), uses):
                return WaitReason.LIMIT
            for_others = {device for device, job_id in kept.items() if job_id != str(job.id)}
            return WaitReason.RESERVATION if drained.union(for_others).issuperset(found) else others

        return [replace(job, reason=reason(job)) for job in jobs]

    @answering
    def counts(self) -> tuple[int, int]:
        """Return how many jobs wait (queued or held), and how many hold a device."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.zcard(keys.LIVE)
        pipe.zcard(keys.LEASES)
        pipe.zcard(keys.ENDED)
        live, active, ended = pipe.execute()
        return live - active - ended, active

    @answering
    def anybody(self) -> bool:
        """Return whether any worker ever announced a device that was not withdrawn."""
        return bool(self._redis.hlen(keys.FACTS))
