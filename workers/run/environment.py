"""The environment variables of a job: the submitter's, and those that the queue adds."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import RunDevice
from gpuqueue.system.environment import CHANGED
from workers.run.hook import INSIDE, with_hook
from workers.run.memory_cap import cap_environment
from workers.run.mps_pipes import MPS_PIPES, NO_PIPES
from workers.run.torch_version import ASK_S, Version, torch_version_of
from workers.threads.timeout import in_time

#: The variable that identifies every process of a run. Forked processes inherit it.
TOKEN = "GPUQUEUE_TOKEN"  # noqa: S105 - a fencing token, no secret
#: Time limit for finding the job's interpreter and asking for its torch version, in seconds. The interpreter may be on
#: a file server that is down, and the run must not block on it. If the time runs out, the hook still caps torch.
ASK_TORCH_LIMIT_S = ASK_S + 2
#: The control pipe of that daemon if the variable is not set.
MPS_CONTROL = Path("/tmp/nvidia-mps/control")  # noqa: S108 - the daemon's default path; its existence is checked
#: The variables of a client of MPS where the site has not turned MPS on.
NO_MPS: Mapping[str, str] = MappingProxyType({})


def environment(
    job_id: int,
    token: str,
    spec: JobSpec,
    devices: tuple[RunDevice, ...],
    run_dir: Path,
    *,
    cap: bool = True,
    as_submitters: bool = False,
    mps: Mapping[str, str] = NO_MPS,
) -> dict[str, str]:
    """Return the environment of a run of *spec* on *devices*; *cap* is whether this site caps jobs.

    *as_submitters*: jobs run as their submitters. Then no program of a job is started to learn its torch version, for
    it would run as the worker, and no job looks for a daemon of MPS where any account can start one. *mps*: the
    variables of a client of MPS, if the site has turned MPS on.

    The devices are pinned by UUID, because CUDA and the driver may number the cards differently. A program sees them
    as 0, 1, … in this order. On the CPU the list is empty, so that the job cannot use a GPU.
    """
    visible = [device.uuid for device in devices if device.kind is not DeviceKind.CPU]
    ours = {
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUQUEUE_JOB_ID": str(job_id),
        "GPUQUEUE_ATTEMPT": token.split(".", 1)[0],
        TOKEN: token,
        "GPUQUEUE_RUN_DIR": str(run_dir),
        "GPUQUEUE_MEM_BYTES": str(_allocated_bytes(spec, devices)),
        "GPUQUEUE_DEVICES": ",".join(device.uuid for device in devices),
        "PWD": spec.cwd,
    }
    # Unbuffered, so that `logs -f` shows a line when it is printed and stderr does not overtake stdout.
    env = {"PYTHONUNBUFFERED": "1", **(_of_this_host() if spec.snapshot is not None else {}), **spec.env}
    changes = _gpu_changes(spec, devices, cap=cap and spec.cap, as_submitters=as_submitters, mps=mps)
    if changes and as_submitters and MPS_PIPES not in spec.env:
        changes = {MPS_PIPES: NO_PIPES, **changes}
    if changes:
        # If the job submits jobs, they must not inherit these values (see gpuqueue.system.environment).
        ours[CHANGED] = json.dumps({name: [spec.env.get(name), value] for name, value in changes.items()})
    return {**env, **changes, **ours}


def _of_this_host() -> dict[str, str]:
    """Return the variables that do not travel (``OF_ONE_MACHINE``): a job with a snapshot may come from elsewhere."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "USER", "LOGNAME", "SHELL") if name in os.environ}


def _gpu_changes(
    spec: JobSpec, devices: tuple[RunDevice, ...], *, cap: bool, as_submitters: bool, mps: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that install the hook in a GPU job's Python, cap its frameworks and connect it to MPS.

    Every GPU job gets the hook, with any command, because Python is often started indirectly (torchrun, a shell
    script, uv, conda run). A job without a GPU gets no variables, because it has nothing to report.
    """
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    if not gpus:
        return {}
    totals = [device.total_bytes for device in gpus if device.total_bytes is not None]
    torch = in_time(lambda: _torch_of(spec), ASK_TORCH_LIMIT_S) if cap and not as_submitters else None
    caps = cap_environment(
        _allocated_bytes(spec, devices),
        min(totals) if len(totals) == len(gpus) else None,
        spec.env,
        on=cap,
        torch=torch,
        devices=len(gpus),
        mps=bool(mps) or MPS_PIPES in spec.env or (not as_submitters and MPS_CONTROL.exists()),
    )
    client = {name: value for name, value in mps.items() if name not in spec.env}
    return {**_hook(spec.env), **client, **caps}


def _allocated_bytes(spec: JobSpec, devices: tuple[RunDevice, ...]) -> int:
    """Return the bytes that a run may use on each device: its request, or the lease if its devices are exclusive."""
    if spec.placement.exclusive:
        return min((device.lease_bytes for device in devices), default=spec.mem_bytes)
    return spec.mem_bytes


def _hook(env: Mapping[str, str]) -> dict[str, str]:
    """Return PYTHONPATH with the hook's directory first."""
    if os.pathsep in str(INSIDE):  # PYTHONPATH cannot hold such a path
        return {}
    return {"PYTHONPATH": with_hook(env.get("PYTHONPATH", ""))}


def _python_of(spec: JobSpec) -> str | None:
    """Return the Python interpreter that the command names, or None if the command starts something else."""
    word = spec.interpreter or spec.argv[0]
    if not Path(word).name.startswith("python"):
        return None
    if "/" in word:
        return str(Path(spec.cwd, word))
    return shutil.which(word, path=spec.env.get("PATH", os.defpath))  # as execvpe: the job's PATH, not the worker's


def _torch_of(spec: JobSpec) -> Version | None:
    """Return the version of the torch that the command would import, or None if it is unknown."""
    python = _python_of(spec)
    return torch_version_of(python, spec.env) if python is not None else None
