"""Changes of mind about jobs that are there."""

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

#: Where a job stands that a change of mind reached.
_AIMS = {"cancel": ("cancelled", "cancelling"), "hold": ("held",), "release": ("queued",)}
#: What stands before the state of a job that was not held, and so was not released, or was cancelled before.
_STANDS = "stands "


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """What a change of mind came to: where the job or the array stands now.

    Of an array, which members it ``reached`` (None: it is none), where those ``others`` stand that it could not, of
    those that are jobs of their own, and whether one that it reached still has to end. ``stood``: nothing was done, it
    was not held, or was cancelled already.
    """

    state: JobState
    reached: frozenset[int] | None = None
    others: Mapping[int, JobState] = field(default_factory=dict)
    ending: bool = False
    stood: bool = False

    @property
    def moved(self) -> int | None:
        """Return how many members it reached, None where there is no array."""
        return None if self.reached is None else len(self.reached)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """What somebody says of a job: tags to add and to take away, a note (None: as it is, empty: none any more)."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    note: str | None = None


class Changes(Store):
    """The part of :class:`gpuqueue.queue.jobqueue.JobQueue` that ends, holds, releases, moves and marks jobs."""

    @answering
    def cancel(self, job_id: int, *, by: str = "") -> JobState | None:
        """End a job; return its state after, None if it is unknown here. *by*: see :meth:`change`."""
        return _state_of(self.change("cancel", job_id, by=by))

    @answering
    def hold(self, job_id: int, *, by: str = "") -> JobState | None:
        """Keep a queued job from being claimed; return its state after, None if it is unknown here."""
        return _state_of(self.change("hold", job_id, by=by))

    @answering
    def release(self, job_id: int, *, by: str = "") -> JobState | None:
        """Let a held job be claimed again; return its state after, None if it is unknown here."""
        return _state_of(self.change("release", job_id, by=by))

    @answering
    def change(self, act: str, job_id: int, *, by: str = "") -> Changed | None:
        """Cancel, hold or release a job, or all of an array; None if it is unknown here.

        *by* is the account that asks, empty for a part of the queue itself, which may change any job.

        Raises:
            Refused: it is somebody else's job.

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
        """Cancel, hold or release an array, or a *part* of it; None if it is unknown here.

        Its members that no device took yet are moved in one step, the others one by one after it. *by*: as above.

        Raises:
            Refused: it is somebody else's.

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
        """Put a job that waits before all others of its user, or back to its place by arrival; None if it is unknown.

        *by*: see :meth:`change`. *called* is what people call it, where that is not its id.

        Raises:
            Refused: it runs or has ended, or is somebody else's.

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
        """Keep what somebody says of a job; return False if it is unknown here.

        One that the book alone still knows is handed in as *ended*: the book hears of it as of all others.
        *by*: see :meth:`change`.

        Raises:
            Refused: it is somebody else's.
            BadRequest: it would have too many tags.

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
    """Return what to raise where somebody asks who may not change a job of *owner*."""
    return Refused(
        f"job {job_id} is {plain(owner)}'s: only {plain(owner)} may change it, or who looks after this site "
        "(setting admins)"
    )


def _state_of(done: Changed | None) -> JobState | None:
    return None if done is None else done.state


def state_in(reply: str) -> JobState | None:
    """Return the state that a script answered with, None where it knows no such job.

    Raises:
        Unreadable: no state is called so.

    """
    try:
        return JobState(reply) if reply else None
    except ValueError:
        raise Unreadable(f"the job is {brief(reply)} in the store, which this version does not know") from None
