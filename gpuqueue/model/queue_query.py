"""Queries to the queue: which of the jobs that have not ended. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model import validation
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import tags_of

if TYPE_CHECKING:
    import fnmatch
else:
    fnmatch = later("fnmatch")

#: Parameters of the API, by the field of :class:`QueueQuery`, where they have another name.
PARAMETERS: Mapping[str, str] = {"states": "state", "tags": "tag"}


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueQuery:
    """Filters and page of a list of jobs that have not ended. A job must match all filters that are set.

    The jobs come in the order of their ids. ``limit`` is the largest number of jobs, None means no limit.
    """

    user: str | None = None
    states: tuple[JobState, ...] = ()
    name: str | None = None
    tags: tuple[str, ...] = ()
    pool: str | None = None
    after: int = 0
    limit: int | None = None

    @classmethod
    def of(
        cls,
        *,
        user: str | None = None,
        limit: int | None = None,
        states: Sequence[JobState | str] = (),
        name: str | None = None,
        tags: Sequence[str] = (),
        pool: str | None = None,
        after: int = 0,
    ) -> QueueQuery:
        """Return the query for criteria as a person gives them.

        Args:
            user: The submitting account.
            limit: The largest number of jobs to return.
            states: The job is in one of these states. An array is in the states of its members that have not started;
                the others are jobs of their own.
            name: The whole name, or a pattern such as ``"train*"``.
            tags: The job has all of these tags.
            pool: The pool that the job asks for.
            after: The job has an id above this one.

        Raises:
            BadRequest: an argument is invalid.

        """
        return cls(
            user=validation.text_or_none("user", user),
            limit=None if limit is None else validation.count("limit", limit),
            states=validation.words_of("states", states, JobState),
            name=validation.text_or_none("name", name),
            tags=tags_of(validation.words("tags", tags)),
            pool=validation.text_or_none("pool", pool),
            after=after,
        )

    def fits(self, user: str, name: str, tags: Collection[str], pool: str) -> bool:
        """Return whether a job with these values passes all filters but the states."""
        return (
            self.user in {None, user}
            and (self.name is None or fnmatch.fnmatchcase(name, self.name))
            and {*self.tags} <= {*tags}
            and self.pool in {None, pool}
        )

    def parameters(self) -> dict[str, Any]:
        """Return the filters as parameters of the API. The page, ``after`` and ``limit``, is that of each request."""
        filters = ("user", "states", "name", "tags", "pool")
        return {PARAMETERS.get(name, name): getattr(self, name) for name in filters}
