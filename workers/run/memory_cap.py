"""Which variables keep a job within the memory that it asked for. Pure.

Each framework has its own way to be told, and none is a wall: docs/explanation/memory-cap.md says what each can
do. What the submitter has set is never overridden.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuqueue.text.units import MIB

#: What CUDA itself takes of each process's memory, outside every framework's allocator. Cards and versions differ
#: from 250 to 600 MiB: the largest, so that the whole stays below what was asked for.
CONTEXT_BYTES = 600 * MIB
#: torch reads the key below from this version on. An older one dies of a key that it does not know.
TORCH_READS_FRACTION = (2, 10)
FRACTION_KEY = "per_process_memory_fraction"
#: Where torch looks for it, the one that it looks at first last: the plain name is what we set where there is none.
ALLOC_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
#: Our own word to the hook inside the job.
TORCH_FRACTION = "GPUQUEUE_TORCH_FRACTION"


def allocator_bytes(mem_bytes: int) -> int:
    """Return how much of *mem_bytes* a framework's allocator may take: less CUDA's share, but at least half."""
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
        mem_bytes: What the job may take on each of its *devices*.
        total_bytes: What the smallest of its devices has, since a share of it is all that most can be told; on a
            larger one the cap is looser. None: nobody knows, and only caps in bytes are set.
        env: The submitter's environment.
        on: Whether jobs are capped at all.
        torch: The version of torch that the job will import, None if nobody knows.
        devices: How many devices the job has.
        mps: Whether the devices are shared through NVIDIA's MPS.

    """
    if not on:
        return {}
    caps = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "CUPY_GPU_MEMORY_LIMIT": str(allocator_bytes(mem_bytes))}
    if mps:
        limits = [f"{index}={mem_bytes // MIB}M" for index in range(devices)]
        caps["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)  # of the driver: its own share counts as well
    if total_bytes is not None:
        share = f"{min(1.0, allocator_bytes(mem_bytes) / total_bytes):.4f}"
        if "XLA_CLIENT_MEM_FRACTION" not in env:  # its new name; JAX refuses to see both
            caps["XLA_PYTHON_CLIENT_MEM_FRACTION"] = share
        caps |= _torch(share, torch, env)
    return {name: value for name, value in caps.items() if name not in env or name in ALLOC_CONFS}


def _torch(share: str, torch: tuple[int, int] | None, env: Mapping[str, str]) -> dict[str, str]:
    """Return what caps torch: the hook in any version, and the variable where torch knows it.

    Both, because either may miss: a script that sets the variable itself undoes ours, and the hook is not there
    in ``python -I``. They set the same cap.
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
