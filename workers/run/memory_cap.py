"""The environment variables that cap a job's memory in each framework. Pure.

The frameworks use different variables, and none of them enforces the cap strictly: docs/explanation/memory-cap.md
describes the limits of each. Values that the submitter has set are never overridden.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuqueue.text.units import MIB

#: Memory of a CUDA context, per process and outside every framework's allocator. It is 250 to 600 MiB, depending on the
#: card and the CUDA version; the largest value keeps the total below the job's request.
CONTEXT_BYTES = 600 * MIB
#: The first torch version that reads the key below. Older versions fail on an unknown key.
TORCH_READS_FRACTION = (2, 10)
FRACTION_KEY = "per_process_memory_fraction"
#: The variables in which torch reads the key. torch prefers the last; the first is set if the submitter set neither.
ALLOC_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
#: The variable for the hook inside the job.
TORCH_FRACTION = "GPUQUEUE_TORCH_FRACTION"


def allocator_bytes(mem_bytes: int) -> int:
    """Return the part of *mem_bytes* for a framework's allocator: without the CUDA context, but at least half."""
    return max(mem_bytes - CONTEXT_BYTES, mem_bytes // 2)


def cap_environment(
    mem_bytes: int,
    total_bytes: int | None,
    env: Mapping[str, str],
    *,
    on: bool = True,
    torch: tuple[int, int] | None = None,
    devices: int = 1,
    mps: bool = False,
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

    """
    if not on:
        return {}
    caps = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "CUPY_GPU_MEMORY_LIMIT": str(allocator_bytes(mem_bytes))}
    if mps:
        limits = [f"{index}={mem_bytes // MIB}M" for index in range(devices)]
        caps["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)  # the driver counts CUDA contexts in this limit
    if total_bytes is not None:
        share = f"{min(1.0, allocator_bytes(mem_bytes) / total_bytes):.4f}"
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
