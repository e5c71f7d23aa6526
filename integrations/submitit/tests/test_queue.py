"""Functions run as jobs of a real queue: results, failures, arrays, cancellation, checkpoints."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Protocol

import pytest
import submitit
from bounded import until
from site_of_one import Site

from gpuqueue import JobState, Priority


def test_a_function_runs_as_a_job_and_its_result_comes_back(
    executor: submitit.AutoExecutor, running_queue: Site
) -> None:
    """The output is in the folder under submitit's names, and the queue shows the name of the function."""

    def add(one: int, two: int) -> int:
        sys.stdout.write("adding\n")
        sys.stderr.write("slowly\n")
        return one + two

    job = executor.submit(add, 5, two=7)

    assert 12 == job.result()
    assert ("COMPLETED", True) == (job.state, job.done())
    assert "adding\n" in (job.stdout() or "")
    assert "slowly\n" == job.stderr()
    known = running_queue.client.jobs.get(job.job_id)
    assert (int(job.job_id), JobState.SUCCEEDED) == (known.id, known.state)
    assert known.spec.name.endswith("add")
    assert f"{job.job_id}_0_log.out" == job.paths.stdout.name


def test_an_exception_comes_back_with_its_traceback(executor: submitit.AutoExecutor) -> None:
    """The job has failed in the queue too."""

    def fail() -> None:
        raise RuntimeError("on purpose")

    job = executor.submit(fail)

    with pytest.raises(submitit.core.utils.FailedJobError, match="on purpose") as error:
        job.result()
    assert "Traceback" in str(error.value)
    assert "FAILED" == job.state


def test_map_array_is_one_array_with_a_limit(executor: submitit.AutoExecutor, running_queue: Site) -> None:
    """A member knows its ids, and the caller's jobs have the names that the queue gives them."""

    def where(factor: int) -> tuple[int, str, str | None, str | None]:
        env = submitit.JobEnvironment()
        return 2 * factor, env.job_id, env.array_job_id, env.array_task_id

    executor.update_parameters(gpuqueue_array_parallelism=2)
    jobs = executor.map_array(where, [10, 20, 30])

    array_id = jobs[0].job_id.partition("_")[0]
    assert [f"{array_id}_{index}" for index in range(3)] == [job.job_id for job in jobs]
    assert [(2 * factor, f"{array_id}_{index}", array_id, str(index)) for index, factor in enumerate([10, 20, 30])] == [
        job.result() for job in jobs
    ]
    array = running_queue.client.jobs.get(array_id).spec.array
    assert array is not None
    assert ("0-2", 2) == (str(array.indexes), array.at_once)


def test_a_folder_may_have_the_id_and_odd_characters(executor: submitit.AutoExecutor, tmp_path: Path) -> None:
    """Members have folders of their own, with their logs. Neither shell nor queue takes a character for its own."""
    parameters = executor._executor.parameters
    executor = submitit.AutoExecutor(tmp_path / 'a\'; {index} %x\n"0"' / "%A" / "%j", cluster="gpuqueue")
    executor._executor.parameters = parameters

    jobs = executor.map_array(abs, [-1, -2])

    assert [1, 2] == [job.result() for job in jobs]
    assert "Job completed successfully" in (jobs[1].stdout() or "")
    assert jobs[1].job_id == jobs[1].paths.folder.name


def test_a_cancelled_job_has_no_result(executor: submitit.AutoExecutor, tmp_path: Path) -> None:
    """The function ends in an orderly way, as at an exception. A second cancel is no error, as with Slurm."""
    begun, left = tmp_path / "begun", tmp_path / "left"

    def wait() -> None:
        try:
            begun.touch()
            signal.pause()
        finally:
            left.touch()

    job = executor.submit(wait)
    until(begun.exists, what="the function has begun")
    job.cancel()
    job.wait()
    job.cancel()

    assert ("CANCELLED", True) == (job.state, left.exists())
    assert isinstance(job.exception(), submitit.core.utils.UncompletedJobError)


class Training(Protocol):
    """A function with a checkpoint. ``begun`` is a file with the process of its first run, once that waits."""

    begun: Path

    def __call__(self) -> str:
        """Return which process ran first."""
        ...


@pytest.fixture
def training(tmp_path: Path) -> Training:
    """Return a function that waits in its first run, and returns in the run that goes on from its checkpoint."""

    class Waits(submitit.helpers.Checkpointable):  # here, so that it is pickled as a whole
        begun = tmp_path / "begun"
        first: int | None = None

        def __call__(self) -> str:
            if self.first is None:
                self.first = os.getpid()
                part = self.begun.with_suffix(".part")
                part.write_text(str(self.first))
                part.rename(self.begun)
                signal.pause()
            return f"resumed after {self.first}"

    return Waits()


def test_a_preempted_job_goes_on_from_its_checkpoint(
    executor: submitit.AutoExecutor, running_queue: Site, training: Training
) -> None:
    """The caller's job stays valid, and the preemption counts as no timeout."""
    executor.update_parameters(gpuqueue_mem="5G")
    job = executor.submit(training)
    until(training.begun.exists, what="the training has begun")
    urgent = running_queue.client.jobs.submit(["true"], mem="6G", priority="urgent")

    def asked() -> bool:
        return bool(
            running_queue.queue.maintenance.preempt({Priority.URGENT: (Priority.NORMAL,)}, after_s=0, grace_s=60)
        )

    until(asked, what="the training is preempted")

    assert f"resumed after {training.begun.read_text()}" == job.result()
    assert JobState.SUCCEEDED is running_queue.client.jobs.get(urgent.id).state
    assert "(3 remaining timeouts)" in (job.stdout() or "")
    assert "COMPLETED" == job.state


@pytest.mark.full
def test_a_job_goes_on_from_its_checkpoint_after_its_time(
    executor: submitit.AutoExecutor, running_queue: Site, training: Training
) -> None:
    """The queue sends the signal, and starts the job again under the same id."""
    executor.update_parameters(timeout_min=1, gpuqueue_signal_delay_s=30)
    job = executor.submit(training)

    result = job.result()
    assert f"resumed after {training.begun.read_text()}" == result
    known = running_queue.client.jobs.get(job.job_id)
    assert (2, 1) == (known.attempt, known.requeues)
    assert "(2 remaining timeouts)" in (job.stdout() or "")


@pytest.mark.full
def test_a_result_is_that_of_the_last_run(executor: submitit.AutoExecutor, tmp_path: Path) -> None:
    """The queue runs a failed job again where that is asked for. The caller does not see the failure."""
    begun = tmp_path / "begun"

    def second() -> str:
        if not begun.exists():
            begun.touch()
            raise RuntimeError("the first run")
        return "the second run"

    executor.update_parameters(gpuqueue_retries=1)

    assert "the second run" == executor.submit(second).result()
