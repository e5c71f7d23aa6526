"""Values of the operations that change existing jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gpuqueue.errors import Refused, Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState
from gpuqueue.text.sanitize import brief, plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """The result of an operation on a job or an array, with the state afterwards.

    ``reached`` are the array members that the operation changed; None if the job is not an array. ``others`` are the
    states of claimed members that the operation could not change. ``ending``: a changed member still has to end.
    ``unchanged``: nothing changed, because the job was not held or was already cancelled.
    """

    state: JobState
    reached: frozenset[int] | None = None
    others: Mapping[int, JobState] = field(default_factory=dict)
    ending: bool = False
    unchanged: bool = False

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


def not_yours(job_id: int | str, owner: str) -> Refused:
    """Return the error for an account that may not change a job of *owner*."""
    return Refused(
        f"job {job_id} is {plain(owner)}'s: only {plain(owner)} may change it, or an administrator of this site "
        "(setting admins)"
    )


def state_in(reply: str) -> JobState | None:
    """Return the state in a script's reply, None if the script knows no such job.

    Raises:
        Unreadable: the reply is not a known state.

    """
    try:
        return JobState(reply) if reply else None
    except ValueError:
        raise Unreadable(
            f"the job has the state {brief(reply)} in the store, which this version does not know"
        ) from None
