"""Tags and notes of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.client import validation
from gpuqueue.client.looking import Looking
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model.tags import MAX_NOTE, tags_of

if TYPE_CHECKING:
    from gpuqueue.queue.changes import Mark


class Marking(Looking):
    """Changes tags and notes of jobs that wait, run or have ended."""

    def tag(self, job: int | str, *words: str, remove: bool = False) -> None:
        """Add *words* to the tags of a job, or remove them. The job may have ended.

        Unclaimed members of an array have the tags that the array was submitted with.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job belongs to another user.
            BadRequest: a word is not a tag, there are too many tags, or the job is a member that waits with its array.

        """
        from gpuqueue.queue.changes import Mark  # noqa: PLC0415 - lazy import for startup time

        if not words:
            raise BadRequest(f"say which words: gpuqueue tag {job} baseline")
        tags = tags_of(words)
        self._mark(job, Mark(remove=tags) if remove else Mark(add=tags))

    def note(self, job: int | str, text: str) -> None:
        """Set the note of a job to *text*; an empty text removes the note. The job may have ended.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job belongs to another user.
            BadRequest: *text* is not text or too long, or the job is a member that waits with its array.

        """
        from gpuqueue.queue.changes import Mark  # noqa: PLC0415 - lazy import for startup time

        self._mark(job, Mark(note=validation.text_or_none("a note", text, most=MAX_NOTE) or ""))

    def _mark(self, job: int | str, mark: Mark) -> None:
        """Send *mark* to the queue, which passes it to the history. The job may be in the history only."""
        name = validation.one_job(job)
        job_id = name.member.id if name.member else name.id
        if self.queue.jobs.mark(job_id, mark, by=self._by):
            return
        known = self.show(job).job
        recorded = self._written(job_id)
        if recorded is None:
            raise BadRequest(f"{name} has no story of its own yet: say it of all of {name.id}")
        if not self.queue.jobs.mark(job_id, mark, by=self._by, ended=recorded.job):
            raise Refused(
                f"job {name} {known.state.said} in the history, and the queue does not know it: try again later"
            )
