"""What becomes of the parameters of submitit: the requests of jobs in a real queue, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import submitit
from factories import make_device, make_offer, serve
from gpuqueue_submitit import GpuQueueExecutor, GpuQueueInfoWatcher
from gpuqueue_submitit.executor import SET_HERE

from gpuqueue import Client, JobRequest, JobSpec, Priority
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.text.units import GIB, MIB


@pytest.fixture
def executor(here: JobQueue, watcher: GpuQueueInfoWatcher, tmp_path: Path) -> submitit.AutoExecutor:
    """Return an executor for a queue in which nothing runs."""
    assert here is not None
    assert watcher is not None
    return submitit.AutoExecutor(tmp_path / "jobs", cluster="gpuqueue")


def train() -> None:
    """Do nothing: no job of this file starts."""


def submitted(executor: submitit.AutoExecutor, **parameters: Any) -> JobSpec:
    """Return what the queue has of a job with these parameters."""
    executor.update_parameters(**parameters)
    with Client() as client:
        return client.jobs.get(executor.submit(train).job_id).spec


def test_shared_parameters_are_the_request_of_the_job(executor: submitit.AutoExecutor) -> None:
    """The memory of submitit is that of the host, and gpuqueue_mem is that of the device."""
    host = {"mem_gb": 2.5, "cpus_per_task": 4, "nodes": 1, "tasks_per_node": 1}
    spec = submitted(executor, timeout_min=60, name="resnet", gpuqueue_mem="6G", **host)

    assert (6 * GIB, 2560 * MIB, 4) == (spec.mem_bytes, spec.cpu_mem_bytes, spec.cpus)
    assert ("resnet", 3600, "USR2@90") == (spec.name, spec.time_limit_s, str(spec.signal))
    assert (str(executor.folder / "%j_0_log.out"), str(executor.folder / "%j_0_log.err")) == (spec.output, spec.error)
    assert (sys.executable, "-m", "gpuqueue_submitit", "train", str(executor.folder)) == spec.argv


def test_gpus_per_node_is_the_number_of_devices(executor: submitit.AutoExecutor, here: JobQueue) -> None:
    """None of them is a job on the CPU, whose memory is that of the host."""
    serve(here, make_offer("GPU-1"), make_offer("cpu-0", device=make_device("cpu-0", kind=DeviceKind.CPU)))

    assert 2 == submitted(executor, gpuqueue_mem="1G", gpus_per_node=2).gpus
    executor._executor.parameters.clear()
    spec = submitted(executor, gpus_per_node=0, mem_gb=3)
    assert (DeviceFilter.CPU, 3 * GIB, None) == (spec.device, spec.mem_bytes, spec.cpu_mem_bytes)


def test_options_of_a_submit_are_parameters_too(executor: submitit.AutoExecutor) -> None:
    """They have the prefix that submitit gives to parameters of a plug-in."""
    spec = submitted(
        executor, gpuqueue_mem="1G", gpuqueue_priority="high", gpuqueue_env={"A": "1"}, gpuqueue_tags=["sweep"]
    )

    assert (Priority.HIGH, ("sweep",)) == (spec.priority, spec.tags)
    assert ("1", "gpuqueue") == (spec.env["A"], spec.env["SUBMITIT_EXECUTOR"])


def test_output_and_errors_go_to_one_log_where_asked(executor: submitit.AutoExecutor) -> None:
    """There is no second file then."""
    spec = submitted(executor, gpuqueue_mem="1G", stderr_to_stdout=True)

    assert (None, False) == (spec.error, spec.separate_stderr)


def test_the_signal_comes_before_a_short_time_limit(executor: submitit.AutoExecutor) -> None:
    """The first example of submitit has one minute, which is less than the time before the limit."""
    assert "USR2@30" == str(submitted(executor, gpuqueue_mem="1G", timeout_min=1).signal)
    assert "USR2@10" == str(submitted(executor, gpuqueue_signal_delay_s=10).signal)


def test_setup_and_python_are_commands_of_a_shell(executor: submitit.AutoExecutor) -> None:
    """Python replaces the shell, because the signal before the time limit goes to the first process."""
    executor.update_parameters(gpuqueue_setup=["module load cuda"])
    executor._executor.python = "apptainer exec image.sif python"
    spec = submitted(executor, gpuqueue_mem="1G")

    start = f"exec apptainer exec image.sif python -m gpuqueue_submitit train {executor.folder}"
    assert ("bash", "-c", f"set -e\nmodule load cuda\n{start}") == spec.argv


def test_limits_that_no_host_can_set_are_left_out_with_a_warning(
    executor: submitit.AutoExecutor, here: JobQueue
) -> None:
    """Slurm's code names them always, and only hosts that run jobs as their submitters can set them."""
    serve(here, make_offer(), limits_jobs=False)

    with pytest.warns(UserWarning, match="cpus_per_task and mem_gb set no limit"):
        spec = submitted(executor, gpuqueue_mem="1G", mem_gb=64, cpus_per_task=10)
    assert (None, None) == (spec.cpu_mem_bytes, spec.cpus)


@pytest.mark.parametrize("name", ["nodes", "tasks_per_node"])
def test_several_nodes_or_tasks_are_refused(executor: submitit.AutoExecutor, name: str) -> None:
    """One sentence says what to do instead."""
    with pytest.raises(ValueError, match=f"{name}=2: gpuqueue starts a function once, on one host.*gpus_per_node"):
        executor.update_parameters(**{name: 2})


def test_a_time_limit_is_above_0(executor: submitit.AutoExecutor) -> None:
    """It is refused where it is set."""
    with pytest.raises(ValueError, match="timeout_min=0: a time limit is above 0 minutes"):
        executor.update_parameters(timeout_min=0)


def test_an_unknown_parameter_is_refused_by_its_name(executor: submitit.AutoExecutor) -> None:
    """So is one that the plug-in sets itself."""
    with pytest.raises(NameError, match="Unknown argument 'mme' for executor 'gpuqueue'"):
        executor.update_parameters(gpuqueue_mme="6G")
    with pytest.raises(NameError, match="Unknown argument 'output' for executor 'gpuqueue'"):
        executor.update_parameters(gpuqueue_output="log")
    with pytest.raises(ValueError, match="no parameter of gpuqueue: mme"):
        GpuQueueExecutor("jobs").update_parameters(mme="6G")
    assert {field.name for field in fields(JobRequest)} > SET_HERE


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({}, 'give the device memory.*update_parameters\\(gpuqueue_mem="6G"\\)'),
        ({"gpuqueue_mem": "6X"}, "6X"),
        ({"gpuqueue_mem": "1G", "gpus_per_node": -1}, "1 to 64"),
        ({"gpuqueue_mem": "1G", "gpuqueue_priority": "highest"}, "highest"),
        ({"gpuqueue_mem": "999G"}, "999G"),
    ],
)
def test_a_refused_submission_names_the_reason_and_leaves_nothing(
    executor: submitit.AutoExecutor, parameters: dict[str, Any], why: str
) -> None:
    """The folder has no pickles of jobs that do not exist."""
    executor.update_parameters(**parameters)

    with pytest.raises(submitit.core.utils.FailedSubmissionError, match=why):
        executor.map_array(abs, [1, 2])
    assert [] == [*executor.folder.iterdir()]


def test_large_arguments_are_refused(here: JobQueue, tmp_path: Path) -> None:
    """The limit is that of submitit, for all functions together."""
    assert here is not None
    executor = GpuQueueExecutor(tmp_path / "jobs", max_pickle_size_gb=0.0001)
    executor.update_parameters(mem="1G")

    with pytest.raises(RuntimeError, match=r"raise executor\.max_pickle_size_gb"):
        executor.map_array(len, ["x" * 60_000, "y"])
    assert [] == [*executor.folder.iterdir()]


def test_this_executor_is_taken_only_by_its_name() -> None:
    """AutoExecutor without a name keeps its choice where this plug-in is installed."""
    assert "gpuqueue" != submitit.AutoExecutor.which()
