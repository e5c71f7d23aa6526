"""Writes the report of a job's process at its end, if torch was imported there. Loaded only then.

The report, a line of ``<run>/reports``, holds the peaks of torch's allocator on each device, in the order in which the
process sees the devices, how often the process ran out of device memory, whether it died of that, and the message.
:mod:`workers.run.torch_report` reads the report.
"""

import json
import os
import sys
import time
from typing import Any, Dict, Optional


def write(torch: Any, run_dir: str, began_s: float) -> None:
    """Append the report of this process, if CUDA was initialised in it."""
    if not torch.cuda.is_initialized():  # also false in a fork of a process that initialised CUDA
        return
    fatal = fatal_error()
    report = {
        "v": 1,
        "pid": os.getpid(),
        "torch": str(getattr(torch, "__version__", "")),
        "began_s": began_s,
        "ended_s": time.monotonic(),
        "out_of_memory": fatal is not None,
        "message": "" if fatal is None else str(fatal)[:300],
        "devices": [on_device(torch.cuda, index) for index in range(torch.cuda.device_count())],
    }
    # The run directory may belong to another account: no link that it has put there is followed.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(os.path.join(run_dir, "reports"), flags, 0o600)
    try:
        os.write(fd, (json.dumps(report) + "\n").encode("ascii"))  # one call, so that no other report mixes with it
    finally:
        os.close(fd)


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
    """Return the UUID of the process's device *index*, None if CUDA_VISIBLE_DEVICES does not list UUIDs.

    The process's own variable counts, because a launcher may give each process only one of the run's devices.
    """
    words = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    word = words[index].strip() if index < len(words) else ""
    return word if word.startswith(("GPU-", "MIG-")) else None


def fatal_error() -> Optional[BaseException]:
    """Return the OutOfMemoryError that is an uncaught exception or one of its causes, None without one.

    Python keeps the uncaught exception in ``sys``, so the job's ``sys.excepthook`` stays unchanged.
    """
    error: Optional[BaseException] = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    for _ in range(10):  # the exception and its causes
        if error is None:
            return None
        if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
            return error
        error = error.__cause__
    return None
