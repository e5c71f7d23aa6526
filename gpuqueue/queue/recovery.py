"""Recovery from lost data: open the store, restore its jobs, and hand out the jobs that it still has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from gpuqueue.errors import StoreNotOpen
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import JobState
from gpuqueue.queue import keys
from gpuqueue.queue.connect import NOT_OPEN, answering
from gpuqueue.queue.store import Store

if TYPE_CHECKING:
    import logging

    from gpuqueue.model import event as events
    from gpuqueue.model.run import Survivor
    from gpuqueue.queue import rebuild, replies
    from gpuqueue.queue.lease import Stray
else:
    logging = later("logging")
    events = later("gpuqueue.model.event")
    replies, rebuild = later("gpuqueue.queue.replies"), later("gpuqueue.queue.rebuild")

#: Number of arguments of rebuild_array.lua for an array with unknown progress.
_UNREPORTED = 2


class Recovery(Store):
    """The part of :class:`gpuqueue.queue.jobqueue.JobQueue` that opens and restores stores."""

    @answering
    def begin(self) -> str | None:
        """Begin a rebuild of the store, or join the current one; return the coming epoch, None if the store is open."""
        return self._scripts.run("rebuild_begin", os.urandom(8).hex()) or None

    @answering
    def restore(self, epoch: str, jobs: Sequence[Survivor], *, lease_s: float) -> int | None:
        """Restore jobs of the history in their old states, before the store opens as *epoch*.

        Running jobs get a lease of *lease_s* seconds from now on. A job that cannot be restored is left out and logged.

        Returns:
            The number of jobs that were not back before; None if this rebuild is over.

        """
        each = [(epoch, round(lease_s * 1000), *rebuild.restored(survivor)) for survivor in jobs]
        replies = self._scripts.run_each("rebuild_job", each)
        for survivor, reply in zip(jobs, replies, strict=True):
            if isinstance(reply, Exception):
                if "BADARGS" not in str(reply):
                    raise reply
                logging.getLogger(__name__).error("job %s cannot be put back: %s", survivor.record.job.id, reply)
        reported = [int(reply) for reply in replies if not isinstance(reply, Exception)]
        made_place = [word for survivor in jobs for word in rebuild.made_place(survivor)]
        if made_place:
            reported.append(min(0, int(self._scripts.run("rebuild_preemptions", epoch, *made_place))))
        said = [word for survivor in jobs for word in rebuild.remembered(survivor)]
        if said:
            reported.append(min(0, int(self._scripts.run("rebuild_marks", epoch, *said))))
        return None if -1 in reported else sum(reported)

    @answering
    def gather(self, epoch: str, arrays: Sequence[Survivor]) -> bool:
        """Restore the progress of arrays, after all jobs are back; return whether this rebuild is still on.

        An array with unknown progress is held, and none of it can be released: members would run twice.
        """
        each = [(epoch, *rebuild.gathered(array)) for array in arrays]
        replies = self._scripts.run_each("rebuild_array", each)
        unreported = {
            int(words[1]): "the history cannot say how far it had come" for words in each if len(words) == _UNREPORTED
        }
        for words, reply in zip(each, replies, strict=True):
            if isinstance(reply, Exception):
                if "BADARGS" not in str(reply):
                    raise reply
                unreported[int(words[1])] = str(reply)
        replies += (held := self._scripts.run_each("rebuild_array", [(epoch, array_id) for array_id in unreported]))
        for (array_id, why), reply in zip(unreported.items(), held, strict=True):
            if isinstance(reply, Exception):
                raise reply
            if reply == 1:
                logging.getLogger(__name__).error("array %s cannot be put back, it is held: %s", array_id, why)
        return -1 not in replies

    @answering
    def open(self, floor: int, *, epoch: str | None = None, last: int = 0, pause_s: float = 0.0) -> bool:
        """Open the store; return whether this call opened it. New ids start above *floor*.

        *epoch* is the return value of :meth:`begin`. *last* is the highest id in the history. No job is claimed for
        *pause_s* seconds.
        """
        epoch = epoch or self.begin()
        return epoch is not None and bool(
            self._scripts.run("rebuild_finish", epoch, floor, last, round(pause_s * 1000))
        )

    @answering
    def pause_left_s(self) -> float:
        """Return how many seconds claims stay paused after a rebuild; 0 if they are not paused."""
        claims, ticked = cast("list[str | None]", self._redis.hmget(keys.META, "claims", "reap"))
        now_ms = self.now_ms()
        claims_ms = int(claims or 0)
        return max(1, claims_ms - now_ms) / 1000 if is_paused(claims_ms, int(ticked or 0), now_ms=now_ms) else 0.0

    @answering
    def adopt(self, stray: Stray, *, lease_s: float) -> JobState | None:
        """Offer a run to a store that may have lost it; return the job's state, None if this is not its run (any more).

        The state is an end if the run has ended and the history has not recorded the end yet.
        """
        reply = self._scripts.run("adopt", stray.job_id, stray.token, round(lease_s * 1000), *rebuild.offered(stray))
        return JobState(reply) if reply else None

    @answering
    def park(self, job_id: int, token: str, *, lease_s: float) -> bool:
        """Protect a run that is left to its shim for *lease_s* seconds; return False if it is stale or cancelled."""
        return bool(self._scripts.run("park", job_id, token, round(lease_s * 1000)))

    @answering
    def unrecorded(self, epoch: str, runs: Mapping[int, str]) -> dict[str, JobState] | None:
        """Return the states of the jobs with ended *runs* that the history has not recorded yet, by token.

        *runs* are tokens by job id. The state is FAILED for a run whose job was queued again. Returns None if the epoch
        of the store is not *epoch*, because such a store cannot know.
        """
        pipe = self._redis.pipeline(transaction=True)
        pipe.get(keys.EPOCH)
        pipe.hget(keys.META, "recorded")
        for job_id in runs:
            pipe.hmget(keys.job(job_id), "tok", "st", "pt", "pe")
        now_epoch, recorded, *found = pipe.execute()
        if now_epoch != epoch:
            return None
        states = {}
        for token, (its_token, state, ended_token, event) in zip(runs.values(), found, strict=True):
            if token == its_token:
                states[token] = JobState(state)
            elif token == ended_token and events.place(event or "0-0") > events.place(recorded or "0-0"):
                states[token] = JobState.FAILED  # its job was queued again since
        return states

    @answering
    def recorded(self) -> str | None:
        """Return the id of the last event that a history has recorded, None if there is none."""
        return cast("str | None", self._redis.hget(keys.META, "recorded"))

    @answering
    def last_given(self) -> int:
        """Return the last job id that was assigned or skipped."""
        return int(cast("str | None", self._redis.get(keys.SEQ)) or 0)

    def survivors(self) -> Iterator[list[Survivor]]:
        """Yield every job that the store still holds, with its current or last run, in pages ordered by id.

        Jobs with damaged entries are left out.

        Raises:
            Unreachable: the store does not answer.

        """
        last = "0"
        while page := self._survivors(last):
            last = page[-1][0]
            yield [job for _, job in page if job is not None]

    @answering
    def _survivors(self, after: str) -> list[tuple[str, Survivor | None]]:
        ids = self._live_ids(after, limit=500)
        found = zip(ids, self._entries(ids), strict=True)
        return [(each, rebuild.survivor(int(each), fields, spec) if fields else None) for each, (fields, spec) in found]

    def _live_ids(self, after: int | str, limit: int) -> list[str]:
        pipe = self._redis.pipeline(transaction=True)
        ask_ids(pipe, after, limit)
        return ids_in(pipe.execute())

    def _entries(self, ids: Sequence[int | str]) -> Iterator[tuple[dict[str, str], str | None]]:
        """Yield the hash and the spec of each job, read in one step because a settled job is deleted."""
        pipe = self._redis.pipeline(transaction=True)
        ask_entries(pipe, ids)
        yield from self._entries_in(pipe.execute())

    def _entries_in(self, answers: Sequence[Any]) -> Iterator[tuple[dict[str, str], str | None]]:
        """Yield the hashes and specs in the replies to :func:`ask_entries`; a member has the spec of its array."""
        hashes, specs = answers[::2], answers[1::2]
        arrays = sorted({fields["ar"] for fields in hashes if fields.get("ar")})
        kept = dict(zip(arrays, self._redis.mget([keys.spec(each) for each in arrays]), strict=True)) if arrays else {}
        for fields, spec in zip(hashes, specs, strict=True):
            yield fields, _spec_of(fields, spec, kept) if fields.get("ar") else spec


def is_paused(claims_ms: int | None, ticked_ms: int | None, *, now_ms: int) -> bool:
    """Return whether claims are paused, by the fields ``claims`` and ``reap`` of the store's ``meta`` hash.

    As ``pausing`` in ``lua/shared/state.lua``: a pause lasts until the first tick after its end.
    """
    return (claims_ms or 0) > min(now_ms, ticked_ms or 0)


def ask_ids(pipe: Any, after: int | str, limit: int) -> None:
    """Add commands to *pipe* that read at most *limit* job ids above *after*, and whether the store is open."""
    pipe.exists(keys.EPOCH)
    pipe.exists(keys.REBUILDING)
    pipe.zrange(keys.LIVE, f"({after}", "+inf", byscore=True, offset=0, num=limit)


def ids_in(answers: Sequence[Any]) -> list[str]:
    """Return the ids in the replies to :func:`ask_ids`.

    Raises:
        StoreNotOpen: the store is not open, so the list could be incomplete.

    """
    is_open, is_on_its_way, page = answers
    if not is_open:
        raise StoreNotOpen(NOT_OPEN["REBUILDING" if is_on_its_way else "NOTOPEN"])
    return cast("list[str]", page)


def ask_entries(pipe: Any, ids: Sequence[int | str]) -> None:
    """Add commands to *pipe* that read the hash and the spec of each job."""
    for job_id in ids:
        pipe.hgetall(keys.job(job_id))
        pipe.get(keys.spec(job_id))


def _spec_of(fields: Mapping[str, str], spec: str | None, arrays: Mapping[str, str | None]) -> str | None:
    """Return a member's spec, which the store has once for the whole array."""
    try:
        return replies.with_owner(spec or arrays[fields["ar"]], replies.member_in(fields))
    except ValueError:  # a damaged entry does not name its array
        return spec
