"""Read access to jobs: their states, and why they wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Member
from gpuqueue.model.job import Job, JobState, WaitReason
from gpuqueue.queue import keys
from gpuqueue.queue.connect import answering
from gpuqueue.queue.fleet import Fleet
from gpuqueue.queue.maintenance import Ticks
from gpuqueue.queue.recovery import Recovery, ask_entries, ask_ids, ids_in

if TYPE_CHECKING:
    import logging

    from gpuqueue import codec
    from gpuqueue.model import job_page as listings
    from gpuqueue.model.job_page import Listing
    from gpuqueue.model.run import Record, RunDevice
    from gpuqueue.queue import explanation, rebuild, replies
    from gpuqueue.queue.explanation import Explanation
else:
    logging = later("logging")
    codec = later("gpuqueue.codec")
    listings = later("gpuqueue.model.job_page")
    explanation = later("gpuqueue.queue.explanation")
    replies = later("gpuqueue.queue.replies")
    rebuild = later("gpuqueue.queue.rebuild")

#: Maximum number of jobs in one call of ``listing.lua``.
MOST_JOBS = 500


class Looks(Recovery, Fleet, Ticks):
    """The part of :class:`gpuqueue.queue.jobqueue.JobQueue` that only reads."""

    @answering
    def get(self, job_id: int) -> Job | None:
        """Return the job in its current state, or None if the queue does not know it (any more).

        Raises:
            Unreadable: the store knows the job, but its entry is damaged.

        """
        fields, spec = next(self._entries([job_id]))
        return self._with_reasons([replies.job(job_id, fields, spec)], {})[0] if fields else None

    @answering
    def members(self, array_id: int) -> list[JobState]:
        """Return the states of the claimed members of an array that have not ended; empty if it is no array."""
        pipe = self._redis.pipeline(transaction=False)
        for member_id in self._redis.smembers(keys.members(array_id)):
            pipe.hget(keys.job(member_id), "st")
        return [JobState(state) for state in pipe.execute() if state]

    @answering
    def called(self, job_ids: Iterable[int]) -> dict[int, str]:
        """Return the names of those *job_ids* that are array members, such as ``17_2``."""
        ids = sorted(set(job_ids))
        if not ids:
            return {}
        pipe = self._redis.pipeline(transaction=False)
        for job_id in ids:
            pipe.hget(keys.job(job_id), "ar")
        arrays = zip(ids, pipe.execute(), strict=True)
        return {
            job_id: str(Member.of(job_id, int(array)))
            for job_id, array in arrays
            if array and array.isascii() and array.isdecimal()
        }

    @answering
    def record(self, job_id: int) -> Record | None:
        """Return the job with its current or last run in the store; None if the store does not know the job."""
        fields, spec = next(self._entries([job_id]))
        found = rebuild.survivor(job_id, fields, spec) if fields else None
        return None if found is None else found.record

    @answering
    def why(self, job_id: int) -> Explanation | None:
        """Return why a job does not run, by the rules and values of a claim; None if the job is unknown."""
        reply = self._scripts.run("why", job_id)
        return explanation.explanation(job_id, reply) if reply else None

    @answering
    def live(self, *, limit: int = 1000, after: int = 0) -> list[Job]:
        """Return at most *limit* jobs that the store still holds, with ids above *after*, oldest first.

        A job with a damaged entry is left out and logged.
        """
        return list(self.page(limit=limit, after=after).jobs)

    @answering
    def page(self, *, limit: int = 1000, after: int = 0) -> Listing:
        """Return the jobs of :meth:`live`, with the memory of the running ones, and the id to continue ``after``.

        This takes two round trips to the store. Array members need another one, and so do very many different jobs.
        """
        pipe = self._redis.pipeline(transaction=True)
        ask_ids(pipe, after, limit)
        pipe.time()
        *page, (seconds, micros) = pipe.execute()
        ids = ids_in(page)
        pipe = self._redis.pipeline(transaction=True)
        ask_entries(pipe, ids)
        for first in range(0, len(ids), MOST_JOBS):
            self._scripts.add(pipe, "listing", *ids[first : first + MOST_JOBS])
        answers = pipe.execute()
        details = dict(zip(map(int, ids), itertools.chain.from_iterable(answers[2 * len(ids) :]), strict=True))
        jobs: list[Job] = []
        said: dict[int, tuple[str, tuple[RunDevice, ...]]] = {}
        for job_id, (fields, spec) in zip(ids, self._entries_in(answers[: 2 * len(ids)]), strict=True):
            try:
                if fields:
                    jobs.append(replies.job(int(job_id), fields, spec))
                    if jobs[-1].state.is_active and fields.get("said"):
                        said[int(job_id)] = codec.decode_started(fields["said"])
            except Unreadable as error:
                logging.getLogger(__name__).warning("%s", error)
        return listings.Listing(
            at=from_epoch_ms(int(seconds) * 1000 + int(micros) // 1000),
            jobs=tuple(self._with_reasons(jobs, details)),
            held_bytes={job_id: int(each) for job_id, each in details.items() if each and each.isdecimal()},
            logs={job_id: log_path for job_id, (log_path, _) in said.items() if log_path},
            devices={job_id: devices for job_id, (_, devices) in said.items()},
            after=int(ids[-1]) if len(ids) == limit else None,
        )

    def _with_reasons(self, jobs: list[Job], details: Mapping[int, str | None]) -> list[Job]:
        """Return *jobs*, each that waits for a device with the precise reason; *details* are of ``listing.lua``."""
        found = dict(details)
        unknown = [job for job in jobs if job.reason is WaitReason.MEMORY and found.get(job.id) is None]
        unknown.sort(key=lambda job: (job.spec.account.name, str(job.spec.shape)))  # one call judges equal jobs once
        while unknown:
            asked = [job.id for job in unknown[:MOST_JOBS]]
            found.update(zip(asked, self._scripts.run("listing", *asked), strict=True))
            unknown = [job for job in unknown if found.get(job.id) is None]

        def precise(job: Job) -> Job:
            reason = found.get(job.id) if job.reason is WaitReason.MEMORY else None
            return replace(job, reason=WaitReason(reason)) if reason and not reason.isdecimal() else job

        return list(map(precise, jobs))

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
        """Return whether there is any announced device that was not withdrawn."""
        return bool(self._redis.hlen(keys.FACTS))
