"""The request for a job of the queue, from the resources of a job of Snakemake."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuqueue import GpuQueueError, JobRequest
from gpuqueue.model.job_spec import MAX_NAME

#: What comes before an option of a submit in the name of a resource.
PREFIX = "gpuqueue_"
#: Options that the plug-in sets. The others are resources, such as gpuqueue_mem.
SET_HERE = frozenset(
    {
        *("command", "args", "cwd", "env", "name", "gpus", "device", "time_limit", "dedupe", "output", "error"),
        *("snapshot", "snapshot_allow", "keep", "array", "sweep", "each_line", "at_once", "max_failures"),
        *("python", "environment", "pty", "warm", "probe", "given_in", "anyway", "after", "hold", "begin", "git"),
    }
)
OPTIONS = frozenset(field.name for field in dataclasses.fields(JobRequest)) - SET_HERE
#: The tag of all jobs of Snakemake.
TAG = "snakemake"


def request_of(shell_line: str, name: str, given: Mapping[str, Any], **set_here: Any) -> JobRequest:
    """Return the request for the job *name*, which runs *shell_line*, with the resources *given*.

    A job runs on GPUs if it asks for some by ``gpu``, or for device memory, else on the CPU.

    Raises:
        GpuQueueError: a resource is no option of a submit.

    """
    options = {key.removeprefix(PREFIX): value for key, value in given.items() if key.startswith(PREFIX)}
    if unknown := sorted(options.keys() - OPTIONS):
        there_are = ", ".join(PREFIX + each for each in sorted(OPTIONS))
        raise GpuQueueError(f"no resource of gpuqueue: {PREFIX}{unknown[0]}. There are {there_are}")
    if given.get("gpu", "mem" in options or options.get("exclusive", False)):
        options |= {"gpus": int(given.get("gpu", 1)), "device_type": options.get("device_type", given.get("gpu_model"))}
    else:
        mem_mb = given.get("mem_mb")
        options = {"device": "cpu", "mem": None if mem_mb is None else int(mem_mb) * 10**6, **options}
    tags = options.pop("tags", "")
    return JobRequest(
        ["sh", "-c", shell_line],
        name=name[:MAX_NAME],
        tags=(TAG, *(tags.split(",") if tags else ())),
        time_limit=None if given.get("runtime") is None else 60 * int(given["runtime"]),
        snapshot=False,  # code and files are on a file system that all hosts share
        **options,
        **set_here,
    )


def key_of(workdir: Path, targets: Sequence[str]) -> str:
    """Return the dedupe key of the job that makes *targets* in *workdir*: the same after a restart of Snakemake."""
    digest = hashlib.sha256("\0".join([str(workdir), *targets]).encode("utf-8", "surrogateescape"))
    return f"{TAG}-{digest.hexdigest()[:40]}"
