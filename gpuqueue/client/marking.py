"""What people say of jobs: words to find them by, and notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.client import validation
from gpuqueue.client.looking import Looking
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model.tags import MAX_NOTE, tags_of

if TYPE_CHECKING:
    from gpuqueue.queue.changes import Mark


class Marking(Looking):
    """Tags and notes, of jobs that wait, run or have ended."""

    def tag(self, job: int | str, *words: str, remove: bool = False) -> None:
        """Add *words* to the tags of a job, or take them away; also of one that has ended.

        Members of an array that no device took yet have the tags that it was submitted with.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it is somebody else's.
            BadRequest: a word is no tag, there are too many, or it is a member that waits with its array.

        """
        from gpuqueue.queue.changes import Mark  # noqa: PLC0415 - as in queue

        if not words:
            raise BadRequest(f"say which words: gpuqueue tag {job} baseline")
        tags = tags_of(words)
        self._mark(job, Mark(remove=tags) if remove else Mark(add=tags))

    def note(self, job: int | str, text: str) -> None:
        """Keep *text* with a job in place of what was noted before; also with one that has ended. Empty: nothing.

        Raises:
            JobNotFound: nobody knows it.
            Refused: it is somebody else's.
            BadRequest: it is no text or too long, or it is a member that waits with its array.

        """
        from gpuqueue.queue.changes import Mark  # noqa: PLC0415 - as in queue

        self._mark(job, Mark(note=validation.text_or_none("a note", text, most=MAX_NOTE) or ""))

    def _mark(self, job: int | str, mark: Mark) -> None:
        """Tell the queue, which tells the book: also of a job that only the book still knows."""
        name = validation.one_job(job)
        job_id = name.member.id if name.member else name.id
        if self.queue.mark(job_id, mark, by=self._by):
            return
        known = self.show(job).job
        recorded = self._written(job_id)
        if recorded is None:
            raise BadRequest(f"{name} has no story of its own yet: say it of all of {name.id}")
        if not self.queue.mark(job_id, mark, by=self._by, ended=recorded.job):
            raise Refused(
                f"job {name} {known.state.said} in the history, and the queue does not know it: try again later"
            )
