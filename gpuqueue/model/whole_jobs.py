"""What a job may ask for that is handed to an engine as a whole, such as ``--on slurm``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuqueue.model.job_request import JobEdit, JobRequest
    from gpuqueue.model.job_spec import JobSpec

#: Most nodes, and most GPUs, of one job.
MAX_NODES, MAX_GPUS = 1024, 8192
#: Options that have no meaning there: the field of a request, the option, and why.
_REFUSED = (
    ("mem", "--mem", "Slurm gives whole GPUs"),
    ("device", "--device", "Slurm chooses the devices"),
    ("device_type", "--device-type", "ask Slurm for a model with the options of the site"),
    ("exclusive", "--exclusive", "Slurm gives whole GPUs"),
    ("preference", "a preference", "Slurm chooses the devices"),
    ("pty", "--pty", "its output is a file"),
    ("warm", "--warm", "it starts on another machine"),
    ("probe", "a probe", "it measures the memory of devices of this site"),
    ("visible", "--visible", "Slurm sets CUDA_VISIBLE_DEVICES"),
    ("mem_retries", "--mem-retries", "its memory is not known"),
)


def check_request(request: JobRequest) -> None:
    """Check that *request*, which names an engine, asks for nothing that has no meaning there.

    Raises:
        BadRequest: it does.

    """
    for name, option, why in _REFUSED:
        if getattr(request, name):
            raise BadRequest(f"{option} has no meaning with --on {request.on}, since {why}: leave it out")


def check_edit(spec: JobSpec, wanted: JobEdit) -> None:
    """Check that *wanted* changes nothing of *spec*, a job on an engine, that has no meaning there.

    Raises:
        BadRequest: it does.

    """
    for name, option, why in _REFUSED:
        if getattr(wanted, name, None) is not None:
            raise BadRequest(f"{option} has no meaning for a job on {spec.device}, since {why}: leave it out")


def faults_of(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the nodes and the GPUs of *spec*: each field, and the words."""
    if spec.device is None or not spec.device.is_engine:
        if spec.nodes not in {None, 1}:  # one is what each job has
            yield "nodes", "--nodes is for a whole job that is handed to an engine: give --on slurm, or leave it out"
        return
    nodes = nodes_of(spec)
    if not 1 <= nodes <= MAX_NODES:
        yield "nodes", f"a job cannot ask for {nodes} nodes: give a number from 1 to {MAX_NODES}"
    elif not 1 <= spec.gpus <= MAX_GPUS:
        yield (
            "gpus",
            f"a job cannot ask for {spec.gpus} GPUs: give a number from 1 to {MAX_GPUS}, on all nodes together",
        )
    elif spec.gpus % nodes:
        words = f"{spec.gpus} GPUs cannot be shared evenly by {nodes} nodes"
        yield "gpus", f"{words}: --gpus is the number on all nodes together, give a multiple of {nodes}"
    if spec.placement:
        yield "placement", "a job on an engine cannot choose devices of this site"
    for name, value in (("pty", spec.pty), ("probe", spec.probe), ("warm", spec.warm or None)):
        if value is not None:
            yield name, f"{name} has no meaning for a job on an engine"


def nodes_of(spec: JobSpec) -> int:
    """Return the number of nodes of a job on an engine."""
    return 1 if spec.nodes is None else spec.nodes
