"""The environment variables of a job: the submitter's, and those that the queue adds.

``environment`` is the main function. The variables that cap memory depend on the framework, and none of the frameworks
enforces its cap strictly: docs/explanation/memory-cap.md describes the limits of each. Values that the submitter has
set are never overridden. Those of torch also depend on its version, which is found without an import into this process.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from gpuqueue.model.device import DeviceKind
from gpuqueue.model.framework_memory import CUDA_BYTES, allocator_bytes
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.placement import Visible
from gpuqueue.model.run import RunDevice
from gpuqueue.model.slurm_variables import MARK, slurm_variables
from gpuqueue.system.environment import CHANGED
from gpuqueue.text.units import MIB
from workers.run.signed_environment import INSIDE, MAX_THREADS, MPS_PIPES, NO_PIPES, THREADS, with_hook, with_srun
from workers.threads import TIMEOUT, in_time

#: How long an interpreter may take to name its version of torch, in seconds. The usual time is 0.1 s, and longer on a
#: slow disk.
ASK_S = 5.0
#: How long the answer "no torch" or a missing answer is cached, in seconds. torch may be installed later.
AGAIN_S = 300.0
#: Most cached answers. Each PYTHONPATH has its own.
MAX_ANSWERS = 256
#: Prints the version of torch, and the directory that it is installed in.
ASK = "import importlib.metadata as m; d = m.distribution('torch'); print(d.version); print(d.locate_file(''))"
#: Variables that change what an interpreter finds.
MATTERS = ("HOME", "PYTHONPATH", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONUSERBASE")

#: The variable that identifies every process of a run. Forked processes inherit it.
TOKEN = "GPUQUEUE_TOKEN"  # noqa: S105 - a fencing token, no secret
#: Time limit for finding the job's interpreter and asking for its torch version, in seconds. The interpreter may be on
#: a file server that is down, and the run must not block on it. If the time runs out, the hook still caps torch.
ASK_TORCH_LIMIT_S = ASK_S + 2
#: The control pipe of a daemon of MPS if its variable is not set.
MPS_CONTROL = Path("/tmp/nvidia-mps/control")  # noqa: S108 - the daemon's default path; its existence is checked
#: The variables of a client of MPS where the site has not turned MPS on.
NO_MPS: Mapping[str, str] = MappingProxyType({})
#: The first torch version that reads the key below. Older versions fail on an unknown key.
TORCH_READS_FRACTION = (2, 10)
FRACTION_KEY = "per_process_memory_fraction"
#: A cap that is a share of the device is rounded up to one of so many parts, so that it is never below the bytes.
_SHARES = 10**6
#: The variables in which torch reads the key. torch prefers the last; the first is set if the submitter set neither.
ALLOC_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
#: The variable for the hook inside the job.
TORCH_FRACTION = "GPUQUEUE_TORCH_FRACTION"

Version = tuple[int, int]

#: The cache of answers, the oldest first: the version and the metadata directory that must still exist for the answer
#: to be valid (or None without torch), and the time of the answer on the monotonic clock.
_answers: dict[tuple[object, ...], tuple[tuple[Version, Path] | None, float]] = {}
_lock = threading.Lock()


def torch_version_of(interpreter: str, env: Mapping[str, str] | None = None) -> Version | None:
    """Return the major and minor version of the torch that *interpreter* would import, or None if unknown or absent.

    A virtual environment without system packages is read from disk. Any other interpreter is started once and asked. A
    pre-release counts as the previous minor version, because it may lack features of the release.
    """
    env = env or {}
    python = Path(interpreter)
    prefix = python.parent.parent
    if _is_closed(prefix) and not env.get("PYTHONPATH"):
        found = prefix.glob("lib*/python*/site-packages/torch-*.dist-info")
        versions = [version for each in found if (version := _version(each.name.removeprefix("torch-")))]
        return min(versions, default=None)
    return _asked(python, env)


def _is_closed(prefix: Path) -> bool:
    """Return whether *prefix* is a virtual environment without system packages (and so without user packages)."""
    try:
        text = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"^include-system-site-packages\s*=\s*true", text, re.MULTILINE | re.IGNORECASE) is None


def _asked(python: Path, env: Mapping[str, str]) -> Version | None:
    try:
        stamp = python.stat().st_mtime_ns
    except OSError:
        return None
    matters = {name: env[name] for name in MATTERS if name in env}
    key = (python, stamp, *matters.items())
    answer, at_s = _answers.get(key, (None, -AGAIN_S))
    # An upgrade of torch removes the metadata directory of the old version.
    holds = answer[1].exists() if answer is not None else time.monotonic() - at_s < AGAIN_S
    if not holds:
        answer = _ask(python, matters)
        with _lock:
            _answers.pop(key, None)
            while len(_answers) >= MAX_ANSWERS:
                del _answers[next(iter(_answers))]
            _answers[key] = answer, time.monotonic()
    return answer[0] if answer is not None else None


def _ask(python: Path, env: Mapping[str, str]) -> tuple[Version, Path] | None:
    try:
        answer = subprocess.run(
            [TIMEOUT, str(ASK_S), str(python), "-c", ASK],
            env={"PATH": "/usr/bin:/bin", **env},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=True,
        )
        version, place = answer.stdout.splitlines()[-2:]
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    parsed = _version(version)
    return None if parsed is None else (parsed, Path(place, f"torch-{version}.dist-info"))


def _version(text: str) -> Version | None:
    match = re.match(r"(\d+)\.(\d+)(?:\.\d+)*(a|b|rc|\.?dev)?", text)
    if match is None:
        return None
    major, minor = int(match[1]), int(match[2])
    return (major, minor - 1) if match[3] else (major, minor)


def environment(  # noqa: PLR0913 - one for each fact about the run and its host
    job_id: int,
    token: str,
    spec: JobSpec,
    devices: tuple[RunDevice, ...],
    run_dir: Path,
    *,
    cap: bool = True,
    as_submitters: bool = False,
    mps: Mapping[str, str] = NO_MPS,
    threads: int | None = None,
    cuda: int = CUDA_BYTES,
) -> dict[str, str]:
    """Return the environment of a run of *spec* on *devices*; *cap* is whether this site caps jobs.

    *as_submitters*: jobs run as their submitters. Then no program of a job is started to learn its torch version, for
    it would run as the worker, and no job looks for a daemon of MPS where any account can start one. *mps*: the
    variables of a client of MPS, if the site has turned MPS on. *threads*: how many threads a numerical library starts
    in one process (:func:`threads_of`). *cuda*: the bytes that CUDA takes on these devices beside a framework's
    allocator.

    The devices are pinned by UUID, because CUDA and the driver may number the cards differently, or by index if *spec*
    says so. A program sees them as 0, 1, … in this order. On the CPU the list is empty, so that the job cannot use a
    GPU.
    """
    names = _names([device for device in devices if device.kind is None or device.kind.is_gpu], spec.visible)
    ours = {
        "CUDA_VISIBLE_DEVICES": ",".join(names),
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
    changes = _gpu_changes(spec, devices, cap=cap and spec.cap, as_submitters=as_submitters, mps=mps, cuda=cuda)
    if changes and as_submitters and MPS_PIPES not in spec.env:
        changes = {MPS_PIPES: NO_PIPES, **changes}
    changes = {**changes, **_thread_counts(spec, threads)}
    if MARK in spec.env:
        changes |= slurm_variables({**env, **ours}, directory=spec.cwd, host=os.uname().nodename)
        if not as_submitters:  # else the launcher adds it
            changes |= with_srun(env, env.get("PATH", os.defpath))
    if changes:
        # If the job submits jobs, they must not inherit these values (see gpuqueue.system.environment).
        ours[CHANGED] = json.dumps({name: [env.get(name), value] for name, value in changes.items()})
    return {**env, **changes, **ours}


def of_whole_job(spec: JobSpec, run_dir: Path, *, job_id: int, attempt: int) -> dict[str, str]:
    """Return the environment of a job that an engine runs on its own machines, and which gives it its devices there.

    It lacks the token: by that the processes of a run are found and ended on this host, and the engine's may be here.
    """
    ours = {"GPUQUEUE_JOB_ID": str(job_id), "GPUQUEUE_ATTEMPT": str(attempt), "GPUQUEUE_RUN_DIR": str(run_dir)}
    return {"PYTHONUNBUFFERED": "1", **(_of_this_host() if spec.snapshot is not None else {}), **spec.env, **ours}


def threads_of(spec: JobSpec, host_devices: int) -> int | None:
    """Return how many threads a numerical library of *spec* starts in one process: its share of the processors here.

    These are the processors that this process may use, divided by the devices of this host. By default each library of
    each job starts as many threads as there are processors, and jobs at the same time slow each other down. None: the
    submitter has set OMP_NUM_THREADS, which all these libraries follow.
    """
    if THREADS[0] in spec.env:
        return None
    share = len(os.sched_getaffinity(0)) * spec.gpus // host_devices if spec.cpus is None else int(spec.cpus)
    return min(max(1, share), MAX_THREADS)


def _thread_counts(spec: JobSpec, threads: int | None) -> dict[str, str]:
    return {} if threads is None else {name: str(threads) for name in THREADS if name not in spec.env}


def _names(devices: Sequence[RunDevice], visible: Visible | None) -> list[str]:
    """Return the names of *devices* for CUDA: UUIDs if one has no index, as a MIG instance."""
    if visible is not Visible.INDEX or any(
        device.index is None or device.uuid.startswith("MIG-") for device in devices
    ):
        return [device.uuid for device in devices]
    return [str(device.index) for device in devices]


def _of_this_host() -> dict[str, str]:
    """Return the variables that do not travel (``OF_ONE_MACHINE``): a job with a snapshot may come from elsewhere."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "USER", "LOGNAME", "SHELL") if name in os.environ}


def _gpu_changes(
    spec: JobSpec, devices: tuple[RunDevice, ...], *, cap: bool, as_submitters: bool, mps: Mapping[str, str], cuda: int
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
        cuda=cuda,
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


def cap_environment(
    mem_bytes: int,
    total_bytes: int | None,
    env: Mapping[str, str],
    *,
    on: bool = True,
    torch: tuple[int, int] | None = None,
    devices: int = 1,
    mps: bool = False,
    cuda: int = CUDA_BYTES,
) -> dict[str, str]:
    """Return the variables that cap a job.

    Args:
        mem_bytes: Bytes that the job may use on each of its *devices*.
        total_bytes: Total bytes of the job's smallest device. Most frameworks take the cap only as a share of the
            device, so it is looser on a larger device. If None, only caps in bytes are set.
        env: The submitter's environment.
        on: Whether the job is capped.
        torch: The version of torch that the job will import, None if it is unknown.
        devices: The number of the job's devices.
        mps: Whether the devices are shared through NVIDIA's MPS.
        cuda: The bytes that CUDA takes beside a framework's allocator.

    """
    if not on:
        return {}
    allowed_bytes = allocator_bytes(mem_bytes, cuda)
    caps = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "CUPY_GPU_MEMORY_LIMIT": str(allowed_bytes)}
    if mps:
        limits = [f"{index}={mem_bytes // MIB}M" for index in range(devices)]
        caps["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)  # the driver counts CUDA contexts in this limit
    if total_bytes is not None:
        share = f"{min(1.0, math.ceil(allowed_bytes / total_bytes * _SHARES) / _SHARES):.6f}"
        if "XLA_CLIENT_MEM_FRACTION" not in env:  # the variable's new name; JAX refuses to run with both
            caps["XLA_PYTHON_CLIENT_MEM_FRACTION"] = share
        caps |= _torch(share, torch, env)
    return {name: value for name, value in caps.items() if name not in env or name in ALLOC_CONFS}


def _torch(share: str, torch: tuple[int, int] | None, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that cap torch: the hook's for any version, and torch's own from 2.10 on.

    Both set the same cap, and each has a gap: a script can overwrite torch's variable, and ``python -I`` does not load
    the hook.
    """
    there = [name for name in ALLOC_CONFS if env.get(name)]
    if any(FRACTION_KEY in env[name] for name in there):
        return {}
    caps = {TORCH_FRACTION: share}
    if torch is not None and torch >= TORCH_READS_FRACTION:
        caps |= {name: f"{env[name].rstrip(',')},{FRACTION_KEY}:{share}" for name in there}
        if not there:
            caps[ALLOC_CONFS[0]] = f"{FRACTION_KEY}:{share}"
    return caps
