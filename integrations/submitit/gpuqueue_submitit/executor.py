"""Submits functions to the queue, with the parameters of submitit."""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import sys
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit import AutoExecutor
from submitit.core import core, utils

from gpuqueue import Client, GpuQueueError, Job, JobRequest
from gpuqueue.model.job_spec import MAX_NAME
from gpuqueue.system.environment import given_variables
from gpuqueue_submitit.environment import GpuQueueJobEnvironment
from gpuqueue_submitit.job import GpuQueueJob

GIB = 1024**3
#: Options of a submit that this plug-in sets: from the parameters of submitit, or because its jobs need them so. The
#: others are parameters of their own, such as gpuqueue_mem.
SET_HERE = frozenset(
    {
        *("command", "args", "name", "gpus", "time_limit", "cpus", "cpu_mem", "array", "at_once", "signal"),
        *("output", "error", "separate_stderr", "snapshot", "snapshot_allow", "keep"),
        *("python", "environment", "pty", "warm", "sweep", "each_line", "dedupe", "probe", "given_in", "anyway"),
    }
)
OPTIONS = frozenset(field.name for field in dataclasses.fields(JobRequest)) - SET_HERE
#: Parameters with the names and meanings of those of Slurm's executor.
LIKE_SLURM = frozenset({"array_parallelism", "setup", "signal_delay_s"})
SHARED = frozenset(AutoExecutor._valid_parameters())  # noqa: SLF001 - submitit has no other list of them
#: Time limit of a function without timeout_min, in minutes, and time between signal and limit, in seconds: those that
#: submitit has for Slurm.
TIMEOUT_MIN, SIGNAL_DELAY_S = 5, 90
#: What the queue would replace in the command of an array. Doubled braces stay as they are.
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class GpuQueueExecutor(core.Executor):
    """Runs functions as jobs of a gpuqueue.

    Args:
        folder: Where functions, results and links to logs are. The hosts of the queue need it at the same path.
        max_num_timeout: How often a function with a checkpoint is queued again after its time limit.
        max_pickle_size_gb: Largest estimated size of all functions of a submission with their arguments, in GiB.
        python: The command that starts Python in the job, for a shell. By default this interpreter.

    """

    job_class = GpuQueueJob

    def __init__(
        self,
        folder: str | Path,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        python: str | None = None,
    ) -> None:
        super().__init__(folder)
        self.max_num_timeout = max_num_timeout
        self.max_pickle_size_gb = max_pickle_size_gb
        self.python = python

    @classmethod
    def affinity(cls) -> int:
        """Return 0: ``AutoExecutor`` takes this executor only where its name is given."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {*OPTIONS, *LIKE_SLURM}

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Set parameters: the shared ones of submitit, those of LIKE_SLURM, and options of a submit.

        Raises:
            ValueError: a parameter is unknown, or asks for several nodes or tasks, or for no time.

        """
        known = SHARED | self._valid_parameters()
        if unknown := sorted(kwargs.keys() - known):
            raise ValueError(f"no parameter of gpuqueue: {', '.join(unknown)}. There are {', '.join(sorted(known))}")
        for name in ("nodes", "tasks_per_node"):
            if kwargs.get(name, 1) != 1:
                raise ValueError(
                    f"{name}={kwargs[name]}: gpuqueue starts a function once, on one host. Leave it out; for several "
                    "GPUs use gpus_per_node, and let the function start their processes"
                )
        if kwargs.get("timeout_min", TIMEOUT_MIN) <= 0:
            raise ValueError(f"timeout_min={kwargs['timeout_min']}: a time limit is above 0 minutes")
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """Submit the functions: one as a job, several as one array."""
        count = len(delayed_submissions)
        fixed = utils.JobPaths.get_first_id_independent_folder(self.folder)
        fixed.mkdir(parents=True, exist_ok=True)
        pickles = [fixed / f"{uuid.uuid4().hex}.pkl" for _ in delayed_submissions]
        # A folder whose name has the id cannot be there before the job is, and the links to the logs are made in it.
        waits = fixed != self.folder and not self.parameters.get("hold", False)
        try:
            self._dump(delayed_submissions, pickles)
            job = self._submitted(self._request([each.function for each in delayed_submissions], hold=waits))
        except BaseException:
            for path in pickles:
                path.unlink(missing_ok=True)
            raise
        names = [str(job.id)] if count == 1 else [f"{job.id}_{index}" for index in range(count)]
        jobs: list[core.Job[Any]] = [self.job_class(folder=self.folder, job_id=name) for name in names]
        for each, path in zip(jobs, pickles, strict=True):
            each.paths.move_temporary_file(path, "submitted_pickle")
        if waits:
            with Client() as client:
                client.jobs.release(job.id)
        return jobs

    def _dump(self, submissions: Sequence[utils.DelayedSubmission], pickles: Sequence[Path]) -> None:
        """Write the functions with their arguments.

        Raises:
            RuntimeError: they are too large, judged by the first one.

        """
        for submission, path in zip(submissions, pickles, strict=True):
            submission.set_timeout(self.parameters.get("timeout_min", TIMEOUT_MIN), self.max_num_timeout)
            submission.dump(path)
            size_gb = len(pickles) * path.stat().st_size / GIB
            if path == pickles[0] and size_gb > self.max_pickle_size_gb:
                raise RuntimeError(
                    f"the functions and their arguments take about {size_gb:.2g} GB, more than max_pickle_size_gb="
                    f"{self.max_pickle_size_gb:g}: pass large data as a file, or raise executor.max_pickle_size_gb"
                )

    def _submitted(self, request: JobRequest) -> Job:
        """Submit *request*.

        Raises:
            FailedSubmissionError: the queue refuses it, or does not answer.

        """
        try:
            with Client() as client:
                return client.jobs.submit_request(_within_limits(client, request))
        except GpuQueueError as error:
            here = "" if request.mem is not None else '. Here: update_parameters(gpuqueue_mem="6G")'
            raise utils.FailedSubmissionError(f"{error}{here}") from error

    def _request(self, functions: Sequence[Callable[..., Any]], *, hold: bool) -> JobRequest:
        """Return the request of a job that calls one of *functions*, or of an array that calls all."""
        given, count = self.parameters, len(functions)
        names = {_name_of(each) for each in functions}
        name = names.pop() if len(names) == 1 else "functions"
        command = self._command(name)
        time_limit_s = 60 * given.get("timeout_min", TIMEOUT_MIN)
        signal_s = min(given.get("signal_delay_s", SIGNAL_DELAY_S), time_limit_s / 2)
        options = {key: value for key, value in given.items() if key in OPTIONS}
        options["env"] = {**given_variables(options.get("env")), "SUBMITIT_EXECUTOR": self.name()}
        options["hold"] = hold or options.get("hold", False)
        if count > 1:
            command = [_PLACEHOLDER.sub(r"{{\1}}", word) for word in command]
            options["array"] = f"0-{count - 1}"
            options["at_once"] = given.get("array_parallelism")
        else:
            options.pop("max_failures", None)  # a number of members
        return JobRequest(
            command,
            name=given.get("name", name)[:MAX_NAME],
            time_limit=time_limit_s,
            signal=f"{GpuQueueJobEnvironment.USR_SIG}@{signal_s:g}",
            snapshot=False,  # folder and code are on a shared file system, as with Slurm
            **{**_resources(given), **options, **self._outputs(is_array=count > 1)},
        )

    def _command(self, function: str) -> list[str]:
        """Return the command of a job: this interpreter, or a shell that prepares the way for one."""
        words = ["-m", "gpuqueue_submitit", function, str(self.folder)]
        setup = self.parameters.get("setup", ())
        if self.python is None and not setup:
            return [sys.executable, *words]
        # exec: the signal before the time limit goes to the first process.
        start = f"exec {self.python or shlex.quote(sys.executable)} {shlex.join(words)}"
        return ["bash", "-c", "\n".join(["set -e", *setup, start])]

    def _outputs(self, *, is_array: bool) -> Mapping[str, str]:
        """Return the links to the logs: in the queue's codes, which have no %t and another %j for members."""
        paths = utils.JobPaths(self.folder)
        links = {"output": paths.stdout}
        if not self.parameters.get("stderr_to_stdout", False):
            links["error"] = paths.stderr
        codes = {"%t": "0", "%j": "%A_%a" if is_array else "%j", "%A": "%A", "%a": "%a"}
        return {
            option: re.sub("%[tjAa]?", lambda match: codes.get(match[0], "%%"), str(path))
            for option, path in links.items()
        }


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _resources(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a job needs by the shared parameters of submitit. Their memory is that of the host.

    Without GPUs the job runs on the CPU, whose memory is that of the host.
    """
    cpu_mem_bytes = None if given.get("mem_gb") is None else round(given["mem_gb"] * GIB)
    if given.get("gpus_per_node") == 0:
        return {"device": "cpu", "mem": cpu_mem_bytes, "cpus": given.get("cpus_per_task")}
    return {"gpus": given.get("gpus_per_node", 1), "cpu_mem": cpu_mem_bytes, "cpus": given.get("cpus_per_task")}


def _within_limits(client: Client, request: JobRequest) -> JobRequest:
    """Return *request*, without limits of processors and host memory if no host can set them: then with a warning."""
    if request.cpus is None and request.cpu_mem is None:
        return request
    hosts = client.devices.list()
    if not hosts or any(host.limits_jobs is not False for host in hosts):
        return request
    warnings.warn(
        "no host of this queue limits processors and host memory: cpus_per_task and mem_gb set no limit", stacklevel=2
    )
    return dataclasses.replace(request, cpus=None, cpu_mem=None)
