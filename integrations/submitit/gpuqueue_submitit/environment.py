"""What a function knows about the job that runs it, and what it does at a signal of the queue."""

from __future__ import annotations

import os
import signal
import sys
import types
from pathlib import Path
from typing import ClassVar

from submitit.core.job_environment import JobEnvironment, SignalHandler
from submitit.core.logger import get_logger
from submitit.core.utils import DelayedSubmission, JobPaths

#: The exit code of a run that asks to be queued again.
REQUEUE = 75
#: What the queue writes into the directory of a run that it preempts, before it sends SIGTERM.
PREEMPT_FILE = "preempt.json"


class GpuQueueJobEnvironment(JobEnvironment):
    """The job of the queue that runs this process: one task on one host."""

    _env: ClassVar[dict[str, str]] = {
        "job_id": "GPUQUEUE_JOB_ID",
        "array_job_id": "GPUQUEUE_ARRAY_JOB_ID",
        "array_task_id": "GPUQUEUE_ARRAY_INDEX",
    }
    num_tasks = num_nodes = 1
    node = global_rank = local_rank = 0

    def activated(self) -> bool:
        """Return whether this process runs in a job of the queue that submitit submitted."""
        return super().activated() and self._env["job_id"] in os.environ

    def _handle_signals(self, paths: JobPaths, submission: DelayedSubmission) -> None:
        """Set the handlers of this run. What an earlier run of the job has left is removed: a result, a part of one."""
        parts = [Path(f"{path}.save_tmp") for path in (paths.result_pickle, paths.submitted_pickle)]
        for path in (paths.result_pickle, *parts):
            path.unlink(missing_ok=True)
        handler = GpuQueueSignalHandler(self, paths, submission)
        for number in (signal.SIGTERM, self._usr_sig()):
            signal.signal(number, handler.leave)

    def _requeue(self, countdown: int) -> None:
        """End this run so that the queue starts the job again, with the same id."""
        get_logger().info(f"Requeued job {self.job_id} ({countdown} remaining timeouts)")
        sys.exit(REQUEUE)


class GpuQueueSignalHandler(SignalHandler):
    """Leaves a run: before its time limit and at a preemption with a checkpoint, at a cancellation without one.

    The queue says which it is, so that submitit need not guess from the time that the job has run.
    """

    def __init__(self, env: JobEnvironment, job_paths: JobPaths, delayed: DelayedSubmission) -> None:
        super().__init__(env, job_paths, delayed)
        self._process = os.getpid()
        self._is_leaving = False

    def has_timed_out(self) -> bool:
        """Return whether the time of the run is over; else it is preempted."""
        return not Path(os.environ["GPUQUEUE_RUN_DIR"], PREEMPT_FILE).exists()

    def leave(self, signum: int, frame: types.FrameType | None = None) -> None:
        """Save a checkpoint and queue the job again, or end it."""
        if os.getpid() != self._process:  # forked by the function: the queue signals all processes of a job
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        if self._is_leaving:  # the end of the time that the queue gives: the checkpoint goes on until SIGKILL
            self.bypass(signum, frame)
            return
        self._is_leaving = True
        if signum == signal.SIGTERM and self.has_timed_out():  # no preemption: the job is cancelled
            sys.exit(128 + signum)
        self.checkpoint_and_try_requeue(signum, frame)
