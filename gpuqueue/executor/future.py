"""The future of a call: a :class:`concurrent.futures.Future` that knows its job."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

from gpuqueue.executor.calls import settle
from gpuqueue.executor.submissions import Submission


class Future(concurrent.futures.Future[Any]):
    """The result of a call that runs as a job.

    Attributes:
        job: The name of the job: ``"17"``, or ``"17_2"`` for a member of an array.
        submission: The files of the call and of those that were submitted with it.
        number: The number of the call among these.

    """

    def __init__(
        self, submission: Submission, number: int, *, cancel: Callable[[str], bool], is_active: Callable[[str], bool]
    ) -> None:
        super().__init__()
        self.job = submission.about.label(number)
        self.submission, self.number = submission, number
        self._cancel, self._is_active = cancel, is_active

    def cancel(self) -> bool:
        """End the job, whether it waits or runs. Return False if it has ended already.

        Unlike a call of ``concurrent.futures``, a running one can be cancelled, since a job can. The future is
        cancelled at once; the processes of the job are gone a moment later.
        """
        if not self.done() and self._cancel(self.job):
            self.set_cancelled()
        return self.cancelled()

    def running(self) -> bool:
        """Return whether the job holds a device now. The queue is asked."""
        return not self.done() and self._is_active(self.job)

    def set_cancelled(self) -> None:
        """Set the state to cancelled, and wake up the threads that wait."""
        with self._condition:
            if not self.done() and super().cancel():
                self.set_running_or_notify_cancel()

    def settle(self) -> bool:
        """Take the result from its file. Return False if the job has left none."""
        return settle(self, self.submission.result(self.number), self.job)
