"""What a job finds in its environment: the submitter's, and what the queue adds."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job import JobSpec
from gpuqueue.model.run import RunDevice
from gpuqueue.system.environment import CHANGED
from workers.run.memory_cap import cap_environment
from workers.run.torch_version import ASK_S, Version, torch_version_of
from workers.threads.timeout import in_time

#: By this variable every process of a run can be known, however often it forked.
TOKEN = "GPUQUEUE_TOKEN"  # noqa: S105 - a fencing token, no secret
#: What runs inside the job's own Python.
INSIDE = Path(__file__).parent.parent / "inside" / "site"
#: How long a job's interpreter is looked for and asked, in seconds. It may lie on a file server that has died: nobody
#: would hear of a cancel or a time limit meanwhile. The hook caps a torch of any version.
LOOK_S = ASK_S + 2
#: Where NVIDIA's MPS daemon takes orders, unless a variable says otherwise.
MPS_CONTROL = Path("/tmp/nvidia-mps/control")  # noqa: S108 - the daemon's own place; only looked at


def environment(
    job_id: int, token: str, spec: JobSpec, devices: tuple[RunDevice, ...], run_dir: Path, *, cap: bool = True
) -> dict[str, str]:
    """Return the environment of a run of *spec* on *devices*; *cap* is whether this site caps jobs.

    The devices are pinned by UUID: an index may mean another card to CUDA than to the driver. A program
    sees them as 0, 1, … in this order. On the CPU the list is empty, so that no card is touched unasked.
    """
    visible = [device.uuid for device in devices if device.kind is not DeviceKind.CPU]
    ours = {
        "CUDA_VISIBLE_DEVICES": ",".join(visible),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUQUEUE_JOB_ID": str(job_id),
        "GPUQUEUE_ATTEMPT": token.split(".", 1)[0],
        TOKEN: token,
        "GPUQUEUE_RUN_DIR": str(run_dir),
        "GPUQUEUE_MEM_BYTES": str(_promised_bytes(spec, devices)),
        "GPUQUEUE_DEVICES": ",".join(device.uuid for device in devices),
        "PWD": spec.cwd,
    }
    # Unbuffered, so that `logs -f` shows a line when it is printed and stderr does not overtake stdout.
    env = {"PYTHONUNBUFFERED": "1", **spec.env}
    changes = _gpu_changes(spec, devices, cap=cap and spec.cap)
    if changes:
        # For a job that submits jobs: what is meant for this one must not go along (see gpuqueue.system.environment).
        ours[CHANGED] = json.dumps({name: [spec.env.get(name), value] for name, value in changes.items()})
    return {**env, **changes, **ours}


def _gpu_changes(spec: JobSpec, devices: tuple[RunDevice, ...], *, cap: bool) -> dict[str, str]:
    """Return what a job on GPUs finds changed: the hook inside its Python, and what caps its frameworks.

    Every job gets the hook, whatever its command: Python is mostly started by something else (torchrun, a
    shell script, uv, conda run). A job without a GPU gets nothing: there would be nothing to report.
    """
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    if not gpus:
        return {}
    totals = [device.total_bytes for device in gpus if device.total_bytes is not None]
    torch = in_time(lambda: _torch_of(spec), LOOK_S) if cap else None
    caps = cap_environment(
        _promised_bytes(spec, devices),
        min(totals) if len(totals) == len(gpus) else None,
        spec.env,
        on=cap,
        torch=torch,
        devices=len(gpus),
        mps=_mps_runs(spec.env),
    )
    return {**_hook(spec.env), **caps}


def _promised_bytes(spec: JobSpec, devices: tuple[RunDevice, ...]) -> int:
    """Return what a run may take on each of its devices: what it asked for, or all of them that it has for itself."""
    if spec.placement.exclusive:
        return min((device.lease_bytes for device in devices), default=spec.mem_bytes)
    return spec.mem_bytes


def _hook(env: Mapping[str, str]) -> dict[str, str]:
    """Put our directory first on the path of Pythons; an empty entry would mean the current directory."""
    if os.pathsep in str(INSIDE):  # cannot be said in that variable
        return {}
    entries = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry != str(INSIDE)]
    return {"PYTHONPATH": os.pathsep.join([str(INSIDE), *entries]) if any(entries) else str(INSIDE)}


def _python_of(spec: JobSpec) -> str | None:
    """Return the interpreter that the command names; None where it is started by something else."""
    word = spec.interpreter or spec.argv[0]
    if not Path(word).name.startswith("python"):
        return None
    if "/" in word:
        return str(Path(spec.cwd, word))
    return shutil.which(word, path=spec.env.get("PATH", os.defpath))  # as execvpe does it: never by our own


def _torch_of(spec: JobSpec) -> Version | None:
    """Return the version of the torch that the command would import; None where nobody knows."""
    python = _python_of(spec)
    return torch_version_of(python, spec.env) if python is not None else None


def _mps_runs(env: Mapping[str, str]) -> bool:
    return "CUDA_MPS_PIPE_DIRECTORY" in env or MPS_CONTROL.exists()
