"""Operations that change existing jobs: cancel, hold, release, move and mark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gpuqueue.errors import BadRequest, Refused, Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.array import Indexes
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.tags import MAX_TAGS
from gpuqueue.queue import keys
from gpuqueue.queue.connect import answering
from gpuqueue.queue.store import Store
from gpuqueue.text.sanitize import brief, plain

#: States of a job after a successful operation, by act.
_AIMS = {"cancel": ("cancelled", "cancelling"), "hold": ("held",), "release": ("queued",)}
#: Prefix of the state in a reply when nothing changed: the job was not held, or was already cancelled.
_STANDS = "stands "


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """The result of an operation on a job or an array, with the state afterwards.

    ``reached`` are the array members that the operation changed; None if the job is not an array. ``others`` are the
    states of claimed members that the operation could not change. ``ending``: a changed member still has to end.
    ``stood``: nothing changed, because the job was not held or was already cancelled.
    """

    state: JobState
    reached: frozenset[int] | None = None
    others: Mapping[int, JobState] = field(default_factory=dict)
    ending: bool = False
    stood: bool = False

    @property
    def moved(self) -> int | None:
        """Return the number of changed members; None if the job is not an array."""
        return None if self.reached is None else len(self.reached)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Tags to add and to remove, and a note. None keeps the old note; an empty text removes it."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    note: str | None = None


class Changes(Store):
    """The part of :class:`gpuqueue.queue.jobqueue.JobQueue` that cancels, holds, releases, moves and marks jobs."""

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
        reply = self._scripts.run(act, job_id, by)
        if reply == "array":
            return self.part(job_id, act, by=by)
        if reply.startswith("of "):
            raise not_yours(job_id, reply[3:])
        state = state_in(reply.removeprefix(_STANDS))
        return None if state is None else Changed(state=state, stood=reply.startswith(_STANDS))

    @answering
    def part(self, array_id: int, act: str, part: Indexes | None = None, *, by: str = "") -> Changed | None:
        """Cancel, hold or release an array or a *part* of it; return None if it is unknown.

        Members that no device has claimed yet change in one step. The other members change one by one afterwards.
        *by*: see :meth:`change`.

        Raises:
            Refused: *by* may not change this array.

        """
        reply = self._scripts.run("edit_members", array_id, act, "" if part is None else str(part), by)
        if not reply:
            return None
        if reply[0] == "of":
            raise not_yours(array_id, reply[1])
        state, moved, *others = reply
        answers = self._scripts.run_each(act, [(each, by) for each in others])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        stands = {
            int(each) - array_id - 1: answer.removeprefix(_STANDS) for each, answer in zip(others, answers, strict=True)
        }
        reached = {index for index, answer in stands.items() if answer in _AIMS[act]}
        after = self._redis.hget(keys.job(array_id), "st") if others else state
        return Changed(
            state=JobState(after or state),
            reached=frozenset(reached.union(Indexes.parse(moved))),
            others={index: JobState(answer) for index, answer in stands.items() if answer and index not in reached},
            ending="cancelling" in answers,
            stood=not moved and bool(answers) and all(answer.startswith(_STANDS) for answer in answers),
        )

    @answering
    def move(self, job_id: int, *, front: bool, by: str = "", called: str = "") -> JobState | None:
        """Move a waiting job before all others of its user, or back to its place by arrival; return its state.

        Returns None if the job is unknown. *by*: see :meth:`change`. *called* is the job's name in error messages, if
        that is not its id.

        Raises:
            Refused: the job runs or has ended, or *by* may not change it.

        """
        reply = self._scripts.run("move_front", job_id, int(front), by)
        if not reply:
            return None
        if reply[0] == "of":
            raise not_yours(called or job_id, reply[1])
        if reply[0] == "stands":
            raise Refused(f"job {called or job_id} {JobState(reply[1]).said}: only a job that waits can be moved")
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
        reply = self._scripts.run("set_tags", job_id, *words, by, *(known or ("", "", "", "")))
        if not reply:
            return False
        if reply[0] == "of":
            raise not_yours(job_id, reply[1])
        if reply[0] == "many":
            raise BadRequest(f"job {job_id} would have more than {MAX_TAGS} tags: take some away with --remove")
        if reply != ["done"]:
            raise Unreadable(f"the store has answered what it should not to a mark of job {job_id}: {brief(reply)}")
        return True


def not_yours(job_id: int | str, owner: str) -> Refused:
    """Return the error for an account that may not change a job of *owner*."""
    return Refused(
        f"job {job_id} is {plain(owner)}'s: only {plain(owner)} may change it, or an administrator of this site "
        "(setting admins)"
    )


def _state_of(done: Changed | None) -> JobState | None:
    return None if done is None else done.state


def state_in(reply: str) -> JobState | None:
    """Return the state in a script's reply, None if the script knows no such job.

    Raises:
        Unreadable: the reply is not a known state.

    """
    try:
        return JobState(reply) if reply else None
    except ValueError:
        raise Unreadable(f"the job is {brief(reply)} in the store, which this version does not know") from None
