"""Tags and notes of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuqueue.client import reads
from gpuqueue.client.connection import Connection
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.model import job_ref, validation
from gpuqueue.model.job_spec import tags_of

if TYPE_CHECKING:
    from gpuqueue.queue.changes import Mark

#: Longest note, in characters.
MAX_NOTE = 1000


def tag(connection: Connection, job: int | str, words: Sequence[str], *, remove: bool) -> None:
    """Add *words* to the tags of a job, or remove them."""
    from gpuqueue.queue.changes import Mark  # noqa: PLC0415 - lazy import for startup time

    if not words:
        raise BadRequest(f"name the tags: gpuqueue tag {job} baseline")
    tags = tags_of(words)
    _mark(connection, job, Mark(remove=tags) if remove else Mark(add=tags))


def note(connection: Connection, job: int | str, text: str) -> None:
    """Set the note of a job to *text*; an empty text removes the note."""
    from gpuqueue.queue.changes import Mark  # noqa: PLC0415 - lazy import for startup time

    _mark(connection, job, Mark(note=validation.text_or_none("a note", text, most=MAX_NOTE) or ""))


def _mark(connection: Connection, job: int | str, mark: Mark) -> None:
    """Send *mark* to the queue, which passes it to the history. The job may be in the history only."""
    name = job_ref.one_job(job)
    job_id = reads.id_of(name)
    if connection.queue.jobs.mark(job_id, mark, by=connection.user):
        return
    known = reads.show(connection, job).job
    recorded = connection.recorded(job_id)
    if recorded is None:
        raise BadRequest(f"{name} has not started yet: tag or annotate the whole array {name.id}")
    if not connection.queue.jobs.mark(job_id, mark, by=connection.user, ended=recorded.job):
        raise Refused(
            f"job {name} {known.state.in_words} in the history, and the queue does not know it: try again later"
        )
