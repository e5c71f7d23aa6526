"""The group ``client.jobs``: submits, reads, selects, changes and awaits jobs.

Here are the methods that submit and change jobs; those that read, select and await them are in job_reads.py. Each
method calls a function of the module that is named by what it holds: ``submit``, ``retry``, ``changes``, ``edit``,
``marks``. A module is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuqueue.client.fields import from_fields, then_from_fields
from gpuqueue.client.job_reads import JobReads
from gpuqueue.lazy.imports import later
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_spec import JobSpec

if TYPE_CHECKING:
    from gpuqueue.client import changes, edit, marks, retry, submit
    from gpuqueue.client.changes import Change
    from gpuqueue.model import job_edit, job_request
    from gpuqueue.model.job_edit import JobEdit
    from gpuqueue.model.job_request import JobRequest
else:
    changes = later("gpuqueue.client.changes")
    edit = later("gpuqueue.client.edit")
    marks = later("gpuqueue.client.marks")
    retry = later("gpuqueue.client.retry")
    submit = later("gpuqueue.client.submit")
    job_edit = later("gpuqueue.model.job_edit")
    job_request = later("gpuqueue.model.job_request")


class Jobs(JobReads):
    """The jobs of one queue, for one user.

    A ``job`` is an id (17), or text: ``"17"``, a member of an array (``"17_2"``), and where several jobs can be changed
    at once a part of an array (``"17_5-9"``). A method raises JobNotFound if the job does not exist, Refused if the job
    belongs to another user, and BadRequest if an argument is malformed.
    """

    @from_fields(lambda: job_request.JobRequest)
    def submit(self, request: JobRequest) -> Job:
        """Submit a job and return it. The arguments are the fields of JobRequest.

        Raises:
            BadRequest: an argument is malformed, or the script does not exist.
            JobNotFound: a dependency does not exist.
            Impossible: no known device could ever run the job, or a dependency ended so that it is never satisfied.
            Refused: a limit forbids the job, now or ever, or the site accepts no URLs.

        """
        return self.submit_request(request)

    def submit_request(
        self,
        request: JobRequest,
        *,
        found: Callable[[Job], None] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Job:
        """Submit *request* as :meth:`submit` does.

        *found* is called with a job that has its *dedupe* key, and *note* with a line about the code that travels.
        """
        return submit.queued(self._connection, submit.spec_of(self._connection, request, note), found)

    def retry(
        self,
        job: int | str,
        *,
        args: Sequence[str] | None = None,
        env: Mapping[str, str] | Sequence[str] | None = None,
        found: Callable[[Job], None] | None = None,
        warn: Callable[[str], None] | None = None,
        **changes: Any,
    ) -> Job:
        """Submit the request of an ended job as a new job, and return the new job.

        The new job has the command, directory and environment of the first submission, and belongs to this account.
        It has no dependencies and no earliest start, unless *after* or *begin* gives new ones. For an array, or a part
        of one, the new job is an array of the members that failed or were lost. *args* replace the arguments of the
        script, and *env* is added to the environment. The other arguments are fields of JobEdit, such as
        *mem*. *found* is that of :meth:`submit_request`.

        Secrets are removed when a job has ended, and the environment some time later. The new job then gets them from
        this process, and *warn* is called with a line that says so and names the secrets that are missing.

        Raises:
            Refused: the job has not ended, no member failed, or a limit forbids the new job.
            BadRequest: *args* are given for a job that runs no script, or a change is malformed.
            Unreadable: the job's request cannot be read any more.
            Impossible: see :meth:`submit`.

        """
        return self.submit_spec(self.spec_again(job, args=args, env=env, warn=warn, **changes), found=found)

    def spec_again(
        self,
        job: int | str,
        *,
        args: Sequence[str] | None = None,
        env: Mapping[str, str] | Sequence[str] | None = None,
        warn: Callable[[str], None] | None = None,
        **changes: Any,
    ) -> JobSpec:
        """Return what :meth:`retry` would submit, with the same arguments and errors."""
        return retry.spec_again(self._connection, job, job_edit.JobEdit(**changes), args=args, env=env, warn=warn)

    def submit_spec(self, spec: JobSpec, *, found: Callable[[Job], None] | None = None) -> Job:
        """Submit the *spec* of :meth:`spec_again`."""
        return submit.queued(self._connection, spec, found)

    def cancel(self, job: int | str) -> Change:
        """End the job. Its new state is CANCELLED, or CANCELLING until its processes are gone.

        Raises:
            Refused: the job has ended already, in another state than CANCELLED.

        """
        return changes.cancel(self._connection, job)

    def hold(self, job: int | str) -> Change:
        """Hold a waiting job, or the waiting members of an array or of a part, so that none starts.

        Raises:
            Refused: the job does not wait.

        """
        return changes.hold_or_release(self._connection, "hold", job)

    def release(self, job: int | str) -> Change:
        """Release a held job, or the held members of an array or of a part, so that they can start.

        Raises:
            Refused: the job is not held and does not wait.

        """
        return changes.hold_or_release(self._connection, "release", job)

    def move(self, job: int | str, *, front: bool = True) -> JobState:
        """Move a waiting job before all other jobs of its user, or back to its place by arrival; return its state.

        The order among users does not change. An array moves as a whole.

        Raises:
            Refused: the job runs or has ended.
            BadRequest: the job is a member that waits with its array. Members start in the order of the array.

        """
        return changes.move(self._connection, job, front=front)

    @then_from_fields(lambda: job_edit.JobEdit)
    def edit(self, job: int | str, wanted: JobEdit) -> Job:
        """Change the request of a waiting job or of a whole array, and return the job. It keeps its place in the queue.

        The arguments after *job* are the fields of JobEdit.

        Raises:
            Refused: the job runs or has ended, or waits for a retry that the change removes.
            BadRequest: an argument is malformed, no change was named, or the job would depend on itself.
            Impossible: no known device could ever run the changed job. Nothing was changed.

        """
        return edit.edit(self._connection, job, wanted)

    def tag(self, job: int | str, *words: str, remove: bool = False) -> None:
        """Add *words* to the tags of a job, or remove them. The job may have ended.

        Unclaimed members of an array have the tags that the array was submitted with.

        Raises:
            BadRequest: a word is not a tag, there are too many tags, or the job is a member that waits with its array.

        """
        marks.tag(self._connection, job, words, remove=remove)

    def note(self, job: int | str, text: str) -> None:
        """Set the note of a job to *text*; an empty text removes the note. The job may have ended."""
        marks.note(self._connection, job, text)
