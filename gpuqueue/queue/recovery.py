"""What the queue does when a store lost its data: open it, take back what others still know, hand out what it knows."""

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
from gpuqueue.queue.wait_reasons import is_paused

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

#: So many words rebuild_array.lua is told of an array of which nobody knows how far it came.
_UNTOLD = 2


class Recovery(Store):
    """The part of :class:`gpuqueue.queue.jobqueue.JobQueue` that stores are opened and mended with."""

    @answering
    def begin(self) -> str | None:
        """Begin to make a store ready, or join whoever is at it; return the epoch to come, None if it is open."""
        return self._scripts.run("rebuild_begin", os.urandom(8).hex()) or None

    @answering
    def restore(self, epoch: str, jobs: Sequence[Survivor], *, lease_s: float) -> int | None:
        """Put jobs of the book back where they stood, before the store opens as *epoch*; runs get a lease from now on.

        One that makes no sense is left out, and keeps no other from coming back.

        Returns:
            How many were not back before; None if this rebuild is over.

        """
        each = [(epoch, round(lease_s * 1000), *rebuild.restored(survivor)) for survivor in jobs]
        replies = self._scripts.run_each("rebuild_job", each)
        for survivor, reply in zip(jobs, replies, strict=True):
            if isinstance(reply, Exception):
                if "BADARGS" not in str(reply):
                    raise reply
                logging.getLogger(__name__).error("job %s cannot be put back: %s", survivor.record.job.id, reply)
        told = [int(reply) for reply in replies if not isinstance(reply, Exception)]
        made_place = [word for survivor in jobs for word in rebuild.made_place(survivor)]
        if made_place:
            told.append(min(0, int(self._scripts.run("rebuild_preemptions", epoch, *made_place))))
        said = [word for survivor in jobs for word in rebuild.remembered(survivor)]
        if said:
            told.append(min(0, int(self._scripts.run("rebuild_marks", epoch, *said))))
        return None if -1 in told else sum(told)

    @answering
    def gather(self, epoch: str, arrays: Sequence[Survivor]) -> bool:
        """Tell arrays, once all jobs are back, how far they had come; return whether this rebuild is still on.

        One of which that makes no sense is held, and nothing of it can be released: what has run would run again.
        """
        each = [(epoch, *rebuild.gathered(array)) for array in arrays]
        replies = self._scripts.run_each("rebuild_array", each)
        untold = {int(words[1]): "the book cannot tell how far it had come" for words in each if len(words) == _UNTOLD}
        for words, reply in zip(each, replies, strict=True):
            if isinstance(reply, Exception):
                if "BADARGS" not in str(reply):
                    raise reply
                untold[int(words[1])] = str(reply)
        replies += (held := self._scripts.run_each("rebuild_array", [(epoch, array_id) for array_id in untold]))
        for (array_id, why), reply in zip(untold.items(), held, strict=True):
            if isinstance(reply, Exception):
                raise reply
            if reply == 1:
                logging.getLogger(__name__).error("array %s cannot be put back, it is held: %s", array_id, why)
        return -1 not in replies

    @answering
    def open(self, floor: int, *, epoch: str | None = None, last: int = 0, pause_s: float = 0.0) -> bool:
        """Make the store ready; return whether it was not. Ids go on above *floor*.

        *epoch* is that of a rebuild that :meth:`begin` began, *last* the highest id that the book knows; nothing is
        claimed for *pause_s*.
        """
        epoch = epoch or self.begin()
        return epoch is not None and bool(
            self._scripts.run("rebuild_finish", epoch, floor, last, round(pause_s * 1000))
        )

    @answering
    def pause_left_s(self) -> float:
        """Return how long nothing is claimed yet, because the store was rebuilt a moment ago; 0 if that is over."""
        claims, ticked = cast("list[str | None]", self._redis.hmget(keys.META, "claims", "reap"))
        now_ms = self.now_ms()
        claims_ms = int(claims or 0)
        return max(1, claims_ms - now_ms) / 1000 if is_paused(claims_ms, int(ticked or 0), now_ms=now_ms) else 0.0

    @answering
    def adopt(self, stray: Stray, *, lease_s: float) -> JobState | None:
        """Offer a run to a store that may have lost it; return the job's state, None if this is not its run (any more).

        The state is an end where the run's end is known already and the book does not have it yet.
        """
        reply = self._scripts.run("adopt", stray.job_id, stray.token, round(lease_s * 1000), *rebuild.offered(stray))
        return JobState(reply) if reply else None

    @answering
    def park(self, job_id: int, token: str, *, lease_s: float) -> bool:
        """Let nobody take a run for *lease_s* that is left to its shim; False if it is stale or cancelled."""
        return bool(self._scripts.run("park", job_id, token, round(lease_s * 1000)))

    @answering
    def unrecorded(self, epoch: str, runs: Mapping[int, str]) -> dict[str, JobState] | None:
        """Return where the jobs stand whose ended *runs* (tokens by job id) the book does not have yet, by token.

        FAILED for a run that has ended, whatever became of its job since.
        None where the store is no more that of *epoch*: it cannot know.
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
        """Return the id of the last event that was recorded in a book, None if none ever was."""
        return cast("str | None", self._redis.hget(keys.META, "recorded"))

    @answering
    def last_given(self) -> int:
        """Return the last job id that was given out, or skipped."""
        return int(cast("str | None", self._redis.get(keys.SEQ)) or 0)

    def survivors(self) -> Iterator[list[Survivor]]:
        """Yield every job that the book has not taken over, with its current run, in pages, in the order of their ids.

        One whose entry makes no sense is left out.

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
        """Yield the hash and the spec of each job, both of the same moment: the book may take it over meanwhile."""
        pipe = self._redis.pipeline(transaction=True)
        ask_entries(pipe, ids)
        yield from self._entries_in(pipe.execute())

    def _entries_in(self, answers: Sequence[Any]) -> Iterator[tuple[dict[str, str], str | None]]:
        """Yield what :func:`ask_entries` asked for; the specs of members are looked up at their arrays."""
        hashes, specs = answers[::2], answers[1::2]
        arrays = sorted({fields["ar"] for fields in hashes if fields.get("ar")})
        kept = dict(zip(arrays, self._redis.mget([keys.spec(each) for each in arrays]), strict=True)) if arrays else {}
        for fields, spec in zip(hashes, specs, strict=True):
            yield fields, _spec_of(fields, spec, kept) if fields.get("ar") else spec


def ask_ids(pipe: Any, after: int | str, limit: int) -> None:
    """Let *pipe* ask for the ids of at most *limit* jobs from above *after*, and whether the store is open."""
    pipe.exists(keys.EPOCH)
    pipe.exists(keys.REBUILDING)
    pipe.zrange(keys.LIVE, f"({after}", "+inf", byscore=True, offset=0, num=limit)


def ids_in(answers: Sequence[Any]) -> list[str]:
    """Return the ids that :func:`ask_ids` asked for.

    Raises:
        StoreNotOpen: no list at all is better than one with jobs missing.

    """
    is_open, is_on_its_way, page = answers
    if not is_open:
        raise StoreNotOpen(NOT_OPEN["REBUILDING" if is_on_its_way else "NOTOPEN"])
    return cast("list[str]", page)


def ask_entries(pipe: Any, ids: Sequence[int | str]) -> None:
    """Let *pipe* ask for the hash and the spec of each job."""
    for job_id in ids:
        pipe.hgetall(keys.job(job_id))
        pipe.get(keys.spec(job_id))


def _spec_of(fields: Mapping[str, str], spec: str | None, arrays: Mapping[str, str | None]) -> str | None:
    """Return a member's spec: it is not kept for each of them, but once for all."""
    try:
        return replies.with_owner(spec or arrays[fields["ar"]], replies.member_in(fields))
    except ValueError:  # a damaged entry belongs to nobody
        return spec
