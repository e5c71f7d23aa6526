"""Which jobs are meant: by words that name several, or by what they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING

from gpuqueue.client import validation
from gpuqueue.client.looking import Looking
from gpuqueue.errors import BookUnreachable, JobNotFound, Refused
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_ref import JobName, JobSpan, meant
from gpuqueue.system.account import ROOT

if TYPE_CHECKING:
    import fnmatch
else:
    fnmatch = later("fnmatch")


#: Jobs that the history is asked for at once.
PAGE = 500


class Stand(str, Enum):
    """Where jobs stand that are chosen together; of an array, the members."""

    #: Queued or held.
    WAITING = "waiting"
    #: They hold a device.
    RUNNING = "running"
    #: Queued, and not held.
    QUEUED = "queued"
    HELD = "held"

    def __str__(self) -> str:
        return self.value


class Which(str, Enum):
    """Of a range of ids, the jobs that are of interest; the value says it of one."""

    LIVE = "waits or runs"
    FAILED = "failed"
    ANY = "is known"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A job that was chosen, or of an array the part that was; ``name`` is what all other calls take."""

    name: str
    job: Job


class Choosing(Looking):
    """Finds the jobs that are meant; changes nothing."""

    def named(self, word: str, *, which: Which = Which.LIVE) -> list[str]:
        """Return the names of the jobs that *word* means, in order: itself, or of ``12-19`` each that is of interest.

        Raises:
            BadRequest: it names no job.
            JobNotFound: there is none of those.
            Refused: none of those is of interest.

        """
        name = meant(word)
        if isinstance(name, JobName):
            return [str(name)]
        jobs: dict[int, Job] = {}
        if which is not Which.LIVE:
            jobs.update((job.id, job) for job in self._recorded_from_to(name, which))
        if which is not Which.FAILED:
            jobs.update((job.id, job) for job in self._queued_from_to(name, which))
        if not jobs:
            words = f"no job of {name} {which.value}: see gpuqueue queue and gpuqueue history"
            raise Refused(words) if self._was_any(name) else JobNotFound(words)
        return [job.label for job in _whole(jobs[each] for each in sorted(jobs))]

    def _was_any(self, span: JobSpan) -> bool:
        """Return whether there ever was a job of *span*, as far as it can be told: the book may be away."""
        from gpuqueue.model.history_query import HistoryQuery  # noqa: PLC0415 - as below

        if any(span.first <= job.id <= span.last for job in self.queue.page(after=span.first - 1, limit=1).jobs):
            return True
        try:
            query = HistoryQuery(reverse=True, after_id=span.first - 1 or None, before_id=span.last + 1, limit=1)
            return bool(self.book.history(query))
        except BookUnreachable:
            return False

    def _recorded_from_to(self, span: JobSpan, which: Which) -> Iterator[Job]:
        from gpuqueue.model.history_query import HistoryQuery  # noqa: PLC0415 - as in book: a cancel asks nothing

        states = (JobState.FAILED, JobState.LOST) if which is Which.FAILED else ()
        after = span.first - 1
        while True:
            page = HistoryQuery(
                states=states, reverse=True, after_id=after or None, before_id=span.last + 1, limit=PAGE
            )
            found = self.book.history(page)
            yield from (record.job for record in found)
            if len(found) < PAGE:
                return
            after = found[-1].job.id

    def _queued_from_to(self, span: JobSpan, which: Which) -> Iterator[Job]:
        """Yield what the queue has; also what has ended and is not in the book yet, where any is of interest."""
        after: int | None = span.first - 1
        while after is not None and after < span.last:
            page = self.queue.page(after=after)
            found = (job for job in page.jobs if job.id <= span.last)
            yield from (job for job in found if which is Which.ANY or not job.state.is_end)
            after = page.after

    def may_change(self, user: str) -> bool:
        """Return whether this account may change the jobs of *user*."""
        if self._by in {user, ROOT}:
            return True
        admins = self.queue.admins()
        return admins == "*" or self._by in admins.split(",")

    def must_own(self, user: str) -> None:
        """Refuse to change jobs of *user* all together where each of them would be refused.

        Raises:
            Refused: they are somebody else's.

        """
        if not self.may_change(user):
            raise Refused(f"only {user} may change the jobs of {user}, or who looks after this site (setting admins)")

    def choose(
        self,
        *,
        user: str | None = None,
        name: str | None = None,
        stand: Stand | str | None = None,
        tag: str | None = None,
    ) -> list[Chosen]:
        """Return the jobs of *user* (this account if nobody is named) that have not ended and match all that is given.

        Args:
            user: The submitting account.
            name: The whole name, or a pattern such as ``"train*"``.
            tag: A word that is one of their tags.
            stand: Where they stand. Of an array only the members that do.

        Raises:
            BadRequest: something makes no sense.

        """
        whose = validation.text_or_none("user", user) or self.account.name
        called = validation.text_or_none("name", name)
        where = None if stand is None else validation.word("stand", stand, Stand)
        word = validation.text_or_none("tag", tag)
        jobs = [
            job
            for job in self.jobs(user=whose)
            if (called is None or fnmatch.fnmatchcase(job.spec.name, called)) and (word is None or word in job.tags)
        ]
        if where is None:
            return [Chosen(job.label, job) for job in _whole(jobs) if job.state is not JobState.CANCELLING]
        return [Chosen(each, job) for job in jobs for each in _standing(job, where)]


def _whole(jobs: Iterable[Job]) -> list[Job]:
    """Return *jobs* without the members of arrays that are among them: whoever changes an array changes those."""
    kept = list(jobs)
    arrays = {job.id for job in kept if job.tally is not None or job.spec.array is not None}
    return [job for job in kept if job.member is None or job.member.array_id not in arrays]


def _standing(job: Job, where: Stand) -> Iterator[str]:
    """Yield what *job* is called if it stands there; of an array the parts that do."""
    states = {
        Stand.WAITING: {JobState.QUEUED, JobState.HELD},
        Stand.RUNNING: {JobState.STARTING, JobState.RUNNING},
        Stand.QUEUED: {JobState.QUEUED},
        Stand.HELD: {JobState.HELD},
    }[where]
    if job.tally is None:
        if job.state in states:
            yield job.label
        return
    if JobState.QUEUED in states:
        yield from map(str, JobName.of_parts(job.id, job.tally.left))
    if JobState.HELD in states:
        yield from map(str, JobName.of_parts(job.id, job.tally.held))
