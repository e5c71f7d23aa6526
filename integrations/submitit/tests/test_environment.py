"""What a function knows about its job, and how it leaves a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpuqueue_submitit.environment import GpuQueueJobEnvironment, GpuQueueSignalHandler
from submitit.core import plugins
from submitit.core.utils import DelayedSubmission, JobPaths, UncompletedJobError
from submitit.helpers import Checkpointable


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobPaths:
    """Make this process one in a job, and return the paths of the job."""
    (tmp_path / "run").mkdir()
    variables = {"GPUQUEUE_JOB_ID": "17", "GPUQUEUE_RUN_DIR": str(tmp_path / "run"), "SUBMITIT_EXECUTOR": "gpuqueue"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return JobPaths(tmp_path, "17")


@pytest.fixture
def _own_handlers() -> Iterator[None]:
    """Bring back the handlers of this process after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def preempt(run: Path) -> None:
    """Write what the queue writes into the directory of a run that it preempts."""
    (run / "preempt.json").write_text("{}")


@pytest.mark.usefixtures("job")
def test_only_a_job_that_submitit_submitted_has_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a job of another kind, nor a program that has inherited the executor's name."""
    assert isinstance(plugins.get_job_environment(), GpuQueueJobEnvironment)
    assert "17" == plugins.get_job_environment().job_id

    monkeypatch.delenv("SUBMITIT_EXECUTOR")
    assert not GpuQueueJobEnvironment().activated()
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "gpuqueue")
    monkeypatch.delenv("GPUQUEUE_JOB_ID")
    assert not GpuQueueJobEnvironment().activated()


@pytest.mark.usefixtures("job")
def test_a_member_has_the_id_of_its_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one of the caller's job, in place of the member's own number."""
    monkeypatch.setenv("GPUQUEUE_ARRAY_JOB_ID", "10")
    monkeypatch.setenv("GPUQUEUE_ARRAY_INDEX", "6")
    env = GpuQueueJobEnvironment()

    assert ("10_6", "10", "6", "17") == (env.job_id, env.array_job_id, env.array_task_id, env.raw_job_id)
    assert (1, 1, 0, 0, 0) == (env.num_tasks, env.num_nodes, env.node, env.global_rank, env.local_rank)
    assert [env.hostname] == env.hostnames
    assert "job_id=10_6" in repr(env)


class Saves(Checkpointable):
    """A function that gets a second signal while it saves its checkpoint."""

    handler: GpuQueueSignalHandler | None = None

    def __call__(self) -> None:
        """Do nothing."""

    def checkpoint(self) -> DelayedSubmission:
        """Return what is to run next."""
        assert self.handler is not None
        self.handler.leave(signal.SIGTERM)
        return DelayedSubmission(abs, -1)


@pytest.mark.parametrize(("is_preempted", "timeouts_left"), [(False, 1), (True, 2)])
def test_a_second_signal_does_not_interrupt_a_checkpoint(
    job: JobPaths, *, is_preempted: bool, timeouts_left: int
) -> None:
    """The end of the time of a run comes while it saves. The run asks to be queued again all the same."""
    function = Saves()
    submission = DelayedSubmission(function)
    submission.set_timeout(1000, 2)
    function.handler = GpuQueueSignalHandler(GpuQueueJobEnvironment(), job, submission)
    if is_preempted:
        preempt(job.folder / "run")

    with pytest.raises(SystemExit) as left:
        function.handler.leave(signal.SIGTERM if is_preempted else signal.SIGUSR2)

    assert 75 == left.value.code
    saved = DelayedSubmission.load(job.submitted_pickle)
    assert (abs, timeouts_left) == (saved.function, saved._timeout_countdown)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child only ends
def test_a_process_that_the_function_forked_saves_no_checkpoint(job: JobPaths) -> None:
    """It ends as without a handler. The queue sends SIGTERM to all processes of the job."""
    handler = GpuQueueSignalHandler(GpuQueueJobEnvironment(), job, DelayedSubmission(abs, -1))
    preempt(job.folder / "run")

    child = os.fork()
    if child == 0:
        handler.leave(signal.SIGTERM)
        os._exit(0)

    assert signal.SIGTERM == os.WTERMSIG(os.waitpid(child, 0)[1])
    assert not job.submitted_pickle.exists()


def test_a_function_without_a_checkpoint_runs_again_only_after_a_preemption(job: JobPaths) -> None:
    """After its time it has failed: it would take as long again."""
    submission = DelayedSubmission(abs, -1)
    submission.set_timeout(1, 2)

    with pytest.raises(UncompletedJobError, match="timed-out and not checkpointable"):
        GpuQueueSignalHandler(GpuQueueJobEnvironment(), job, submission).leave(signal.SIGUSR2)
    preempt(job.folder / "run")
    with pytest.raises(SystemExit) as left:
        GpuQueueSignalHandler(GpuQueueJobEnvironment(), job, submission).leave(signal.SIGTERM)
    assert 75 == left.value.code


@pytest.mark.usefixtures("_own_handlers")
def test_a_run_removes_what_an_earlier_run_has_left(job: JobPaths) -> None:
    """A result of before would be that of this run if it is killed, and a part of one stops the next."""
    left = [job.result_pickle, Path(f"{job.result_pickle}.save_tmp"), Path(f"{job.submitted_pickle}.save_tmp")]
    for path in (*left, job.submitted_pickle):
        path.touch()

    GpuQueueJobEnvironment()._handle_signals(job, DelayedSubmission(abs, -1))

    assert [job.submitted_pickle] == [path for path in (*left, job.submitted_pickle) if path.exists()]
