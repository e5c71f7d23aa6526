"""Recovery from lost data: open the store, restore its jobs, and hand out the jobs that it still has."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from gpuqueue.lazy.imports import later
from gpuqueue.queue import keys
from gpuqueue.queue.entries import read_entries, read_ids
from gpuqueue.queue.store import Store, answering, to_ms

if TYPE_CHECKING:
    import logging

    from gpuqueue.model.run import Survivor
    from gpuqueue.queue import rebuild
else:
    logging = later("logging")
    rebuild = later("gpuqueue.queue.rebuild")

#: Number of arguments of rebuild_array.lua for an array with unknown progress.
_UNREPORTED = 2


class Recovery:
    """Opens a store, restores its jobs from the history, and hands out the jobs that it still has."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @answering
    def begin(self) -> str | None:
        """Begin a rebuild of the store, or join the current one; return the coming epoch, None if the store is open."""
        return self._store.scripts.run("rebuild_begin", os.urandom(8).hex()) or None

    @answering
    def restore(self, epoch: str, jobs: Sequence[Survivor], *, lease_s: float) -> int | None:
        """Restore jobs of the history in their old states, before the store opens as *epoch*.

        Running jobs get a lease of *lease_s* seconds from now on. A job that cannot be restored is left out and logged.

        Returns:
            The number of jobs that were not back before; None if this rebuild is over.

        """
        each = [(epoch, to_ms(lease_s), *rebuild.restored(survivor)) for survivor in jobs]
        replies = self._store.scripts.run_each("rebuild_job", each)
        for survivor, reply in zip(jobs, replies, strict=True):
            if isinstance(reply, Exception):
                if "BADARGS" not in str(reply):
                    raise reply
                logging.getLogger(__name__).error("job %s cannot be put back: %s", survivor.record.job.id, reply)
        reported = [int(reply) for reply in replies if not isinstance(reply, Exception)]
        preemptions = [word for survivor in jobs for word in rebuild.preemptions(survivor)]
        if preemptions:
            reported.append(min(0, int(self._store.scripts.run("rebuild_preemptions", epoch, *preemptions))))
        marks = [word for survivor in jobs for word in rebuild.remembered(survivor)]
        if marks:
            reported.append(min(0, int(self._store.scripts.run("rebuild_marks", epoch, *marks))))
        return None if -1 in reported else sum(reported)

    @answering
    def gather(self, epoch: str, arrays: Sequence[Survivor]) -> bool:
        """Restore the progress of arrays, after all jobs are back; return whether this rebuild is still on.

        An array with unknown progress is held, and none of it can be released: members would run twice.
        """
        each = [(epoch, *rebuild.gathered(array)) for array in arrays]
        replies = self._store.scripts.run_each("rebuild_array", each)
        unreported = {
            int(words[1]): "the history does not have its progress" for words in each if len(words) == _UNREPORTED
        }
        for words, reply in zip(each, replies, strict=True):
            if isinstance(reply, Exception):
                if "BADARGS" not in str(reply):
                    raise reply
                unreported[int(words[1])] = str(reply)
        held = self._store.scripts.run_each("rebuild_array", [(epoch, array_id) for array_id in unreported])
        replies += held
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
        return epoch is not None and bool(self._store.scripts.run("rebuild_finish", epoch, floor, last, to_ms(pause_s)))

    @answering
    def pause_left_s(self) -> float:
        """Return how many seconds claims stay paused after a rebuild; 0 if they are not paused."""
        claims, ticked = cast("list[str | None]", self._store.client.hmget(keys.META, "claims", "reap"))
        now_ms = self._store.now_ms()
        claims_ms = int(claims or 0)
        return max(1, claims_ms - now_ms) / 1000 if is_paused(claims_ms, int(ticked or 0), now_ms=now_ms) else 0.0

    @answering
    def last_given(self) -> int:
        """Return the last job id that was assigned or skipped."""
        return int(cast("str | None", self._store.client.get(keys.SEQ)) or 0)

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
        ids = read_ids(self._store, after, limit=500)
        found = zip(ids, read_entries(self._store, ids), strict=True)
        return [(each, rebuild.survivor(int(each), fields, spec) if fields else None) for each, (fields, spec) in found]


def is_paused(claims_ms: int | None, ticked_ms: int | None, *, now_ms: int) -> bool:
    """Return whether claims are paused, by the fields ``claims`` and ``reap`` of the store's ``meta`` hash.

    As ``pausing`` in ``lua/shared/fair_share.lua``: a pause lasts until the first tick after its end.
    """
    return (claims_ms or 0) > min(now_ms, ticked_ms or 0)
