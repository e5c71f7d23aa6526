"""The jobs in the queue: their states, why they wait, and changes by users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest, Refused, Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Indexes, Member
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import MAX_TAGS
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.changes import Changed, Mark, not_yours, state_in
from gpuqueue.queue.entries import read_entries, read_event, read_ids
from gpuqueue.queue.store import Store, answering
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from gpuqueue.model.run import Listing, Record
    from gpuqueue.queue import explanation, pages, recovery, replies
    from gpuqueue.queue.explanation import Explanation
else:
    explanation = later("gpuqueue.queue.explanation")
    pages = later("gpuqueue.queue.pages")
    replies = later("gpuqueue.queue.replies")
    recovery = later("gpuqueue.queue.recovery")

#: States of a job after a successful operation, by act.
_AIMS = {"cancel": ("cancelled", "cancelling"), "hold": ("held",), "release": ("queued",)}
#: Prefix of the state in a reply when nothing changed: the job was not held, or was already cancelled.
_UNCHANGED = "unchanged "


class Jobs:
    """The jobs that the store holds: read them, and cancel, hold, release, move or mark them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @answering
    def get(self, job_id: int) -> Job | None:
        """Return the job in its current state, or None if the queue does not know it (any more).

        Raises:
            Unreadable: the store knows the job, but its entry is damaged.

        """
        fields, spec = next(read_entries(self._store, [job_id]))
        return pages.with_reasons(self._store, [replies.job(job_id, fields, spec)], {})[0] if fields else None

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
        return pages.page(self._store, limit=limit, after=after)

    @answering
    def some(self, ids: Sequence[int]) -> Listing:
        """Return those of the jobs *ids* that the store still holds, as :meth:`page` does."""
        return pages.some(self._store, ids)

    @answering
    def ids(self, *, limit: int, after: int = 0) -> list[int]:
        """Return at most *limit* ids of jobs that the store holds, above *after*, in ascending order."""
        return list(map(int, read_ids(self._store, after, limit)))

    @answering
    def members(self, array_id: int) -> dict[int, JobState]:
        """Return the states of the claimed members of an array that have not ended, by id; empty if it is no array."""
        pipe = self._store.client.pipeline(transaction=False)
        ids = sorted(map(int, self._store.client.smembers(keys.members(array_id))))
        for member_id in ids:
            pipe.hget(keys.job(member_id), stored.STATE)
        return {member_id: JobState(state) for member_id, state in zip(ids, pipe.execute(), strict=True) if state}

    @answering
    def dependents(self, job_id: int, *, limit: int) -> list[int]:
        """Return at most *limit* ids of the waiting jobs that depend on the end of a job, in ascending order."""
        return list(map(int, self._store.client.zrange(keys.dependents(job_id), 0, limit - 1)))

    @answering
    def called(self, job_ids: Iterable[int]) -> dict[int, str]:
        """Return the names of those *job_ids* that are array members, such as ``17_2``."""
        ids = sorted(set(job_ids))
        if not ids:
            return {}
        pipe = self._store.client.pipeline(transaction=False)
        for job_id in ids:
            pipe.hget(keys.job(job_id), stored.ARRAY)
        arrays = zip(ids, pipe.execute(), strict=True)
        return {
            job_id: str(Member.of(job_id, int(array)))
            for job_id, array in arrays
            if array and array.isascii() and array.isdecimal()
        }

    @answering
    def record(self, job_id: int) -> Record | None:
        """Return the job with its current or last run in the store; None if the store does not know the job.

        The run of an ended job has its ending for as long as the outbox has the event.
        """
        fields, spec = next(read_entries(self._store, [job_id]))
        found = recovery.survivor(job_id, fields, spec) if fields else None
        if found is None or not (found.record.runs and found.record.job.state.is_end):
            return None if found is None else found.record
        return recovery.with_end(found.record, read_event(self._store, fields.get(stored.END_EVENT) or "0-0"))

    @answering
    def records(self, job_ids: Sequence[int]) -> list[Record]:
        """Return those of *job_ids* that the store knows, each with its current or last run, in one or two round trips.

        The run of an ended job has no ending.
        """
        found = zip(job_ids, read_entries(self._store, job_ids), strict=True)
        known = (recovery.survivor(job_id, fields, spec) for job_id, (fields, spec) in found if fields)
        return [each.record for each in known if each is not None]

    @answering
    def why(self, job_id: int) -> Explanation | None:
        """Return why a job does not run, by the rules and values of a claim; None if the job is unknown."""
        reply = self._store.scripts.run("why", job_id)
        return explanation.explanation(job_id, reply) if reply else None

    @answering
    def counts(self) -> tuple[int, int]:
        """Return how many jobs wait (queued or held), and how many hold a device."""
        pipe = self._store.client.pipeline(transaction=True)
        pipe.zcard(keys.LIVE)
        pipe.zcard(keys.LEASES)
        pipe.zcard(keys.ENDED)
        live, active, ended = pipe.execute()
        return live - active - ended, active

    @answering
    def cancel(self, job_id: int, *, by: str = "") -> JobState | None:
        """Cancel a job; return its state afterwards, None if it is unknown. *by*: see :meth:`change`."""
        return _state_of(self.change("cancel", job_id, by=by))

    @answering
    def hold(self, job_id: int, *, by: str = "") -> JobState | None:
        """Hold a queued job, so that no worker claims it; return its state afterwards, None if it is unknown."""
        return _state_of(self.change("hold", job_id, by=by))

    @answering
    def release(self, job_id: int, *, by: str = "") -> JobState | None:
        """Release a held job, so that workers may claim it; return its state afterwards, None if it is unknown."""
        return _state_of(self.change("release", job_id, by=by))

    @answering
    def change(self, act: str, job_id: int, *, by: str = "") -> Changed | None:
        """Cancel, hold or release a job or a whole array; return None if it is unknown.

        *by* is the calling account. An empty *by* is the queue itself, which may change any job.

        Raises:
            Refused: *by* may not change this job.

        """
        reply = self._store.scripts.run(act, job_id, by)
        if reply == "array":
            return self.part(job_id, act, by=by)
        if reply.startswith("of "):
            raise not_yours(job_id, reply[3:])
        state = state_in(reply.removeprefix(_UNCHANGED))
        return None if state is None else Changed(state=state, unchanged=reply.startswith(_UNCHANGED))

    @answering
    def part(self, array_id: int, act: str, part: Indexes | None = None, *, by: str = "") -> Changed | None:
        """Cancel, hold or release an array or a *part* of it; return None if it is unknown.

        Members that no device has claimed yet change in one step. The other members change one by one afterwards.
        *by*: see :meth:`change`.

        Raises:
            Refused: *by* may not change this array.

        """
        reply = self._store.scripts.run("edit_members", array_id, act, "" if part is None else str(part), by)
        if not reply:
            return None
        if reply[0] == "of":
            raise not_yours(array_id, reply[1])
        state, moved, *others = reply
        answers = self._store.scripts.run_each(act, [(each, by) for each in others])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        states = {
            int(each) - array_id - 1: answer.removeprefix(_UNCHANGED)
            for each, answer in zip(others, answers, strict=True)
        }
        reached = {index for index, answer in states.items() if answer in _AIMS[act]}
        after = self._store.client.hget(keys.job(array_id), stored.STATE) if others else state
        return Changed(
            state=JobState(after or state),
            reached=frozenset(reached.union(Indexes.parse(moved))),
            others={index: JobState(answer) for index, answer in states.items() if answer and index not in reached},
            ending="cancelling" in answers,
            unchanged=not moved and bool(answers) and all(answer.startswith(_UNCHANGED) for answer in answers),
        )

    @answering
    def move(self, job_id: int, *, front: bool, by: str = "", called: str = "") -> JobState | None:
        """Move a waiting job before all others of its user, or back to its place by arrival; return its state.

        Returns None if the job is unknown. *by*: see :meth:`change`. *called* is the job's name in error messages, if
        that is not its id.

        Raises:
            Refused: the job runs or has ended, or *by* may not change it.

        """
        reply = self._store.scripts.run("move_front", job_id, int(front), by)
        if not reply:
            return None
        if reply[0] == "of":
            raise not_yours(called or job_id, reply[1])
        if reply[0] == "unchanged":
            raise Refused(f"job {called or job_id} {JobState(reply[1]).in_words}: only a job that waits can be moved")
        return state_in(reply[0])

    @answering
    def mark(self, job_id: int, mark: Mark, *, by: str = "", ended: Job | None = None) -> bool:
        """Change the tags and the note of a job; return False if it is unknown.

        *ended* is the job if only the history still knows it. The history then receives the change as an event.
        *by*: see :meth:`change`.

        Raises:
            Refused: *by* may not change this job.
            BadRequest: the job would have too many tags.

        """
        words = (",".join(mark.add), ",".join(mark.remove), int(mark.note is not None), mark.note or "")
        known = () if ended is None else (ended.state.value, ended.attempt, ended.losses, ended.spec.account.name)
        reply = self._store.scripts.run("set_tags", job_id, *words, by, *(known or ("", "", "", "")))
        if not reply:
            return False
        if reply[0] == "of":
            raise not_yours(job_id, reply[1])
        if reply[0] == "many":
            raise BadRequest(f"job {job_id} would have more than {MAX_TAGS} tags: take some away with --remove")
        if reply != ["done"]:
            raise Unreadable(f"the store gave an unexpected answer to a change of tags of job {job_id}: {brief(reply)}")
        return True


def _state_of(done: Changed | None) -> JobState | None:
    return None if done is None else done.state
