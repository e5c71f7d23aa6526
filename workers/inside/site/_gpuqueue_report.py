"""What a job's process tells at its end, if it used torch on a GPU. Loaded only then.

``<run>/inside/<pid>.json``: the peaks of torch's allocator on each device, in the order in which the process saw
them, how often it ran out of memory, and whether it died of that. Read by :mod:`workers.run.torch_report`.
"""

import json
import os
import sys
import time
from typing import Any, Dict, Optional


def write(torch: Any, run_dir: str, began_s: float) -> None:
    """Write the report of this process, if CUDA was initialised in it. It appears at once and whole."""
    if not torch.cuda.is_initialized():  # nor in a fork of a process where it was
        return
    said = {
        "v": 1,
        "pid": os.getpid(),
        "torch": str(getattr(torch, "__version__", "")),
        "began_s": began_s,
        "ended_s": time.monotonic(),
        "out_of_memory": died_of_memory(),
        "devices": [on_device(torch.cuda, index) for index in range(torch.cuda.device_count())],
    }
    directory = os.path.join(run_dir, "inside")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    name = os.path.join(directory, "%d.json" % os.getpid())  # noqa: UP031 - as fast, and everywhere
    with open(name + ".part", "w", encoding="ascii") as file:
        json.dump(said, file)
    os.replace(name + ".part", name)


def on_device(cuda: Any, index: int) -> Dict[str, Any]:
    """Return the figures of the process's device *index*."""
    counts = cuda.memory_stats(index)
    return {
        "index": index,
        "uuid": uuid_of(index),
        "allocated_bytes": int(cuda.max_memory_allocated(index)),
        "reserved_bytes": int(cuda.max_memory_reserved(index)),
        "ooms": int(counts.get("num_ooms", 0)),
        "alloc_retries": int(counts.get("num_alloc_retries", 0)),
    }


def uuid_of(index: int) -> Optional[str]:
    """Return which device that is, as the worker named it; a launcher may have given each process only one."""
    words = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    word = words[index].strip() if index < len(words) else ""
    return word if word.startswith(("GPU-", "MIG-")) else None


def died_of_memory() -> bool:
    """Return whether an exception that nobody caught says that the device's memory was full.

    Python keeps that exception for us, so that the job's ``sys.excepthook`` stays the job's.
    """
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    for _ in range(10):  # raised from another, raised from another, …
        if error is None:
            return False
        if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
            return True
        error = error.__cause__
    return False
