"""A run that died at once: was it the script's own fault, or its device's? Pure.

A device that kills every job in its first seconds is always free, and so it takes the whole queue: a black hole.
Three such deaths in a row drain it (``count_deaths`` in gpuqueue/queue/lua/state.lua). A script that is broken dies at
once as well, wherever it runs, and must not take a card from everybody: a death is held against the device only where
it hardly is the script's. docs/explanation/draining.md tells it to people.
"""

from __future__ import annotations

import os
import re
import signal
from errno import EAGAIN, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS, ESTALE

from gpuqueue.model.device import DeviceKind
from gpuqueue.model.run import Ending, EndingKind
from workers.run.verdict import says_out_of_memory

#: A death within so many seconds of the start is a quick one. Long enough to import torch from a slow disk.
QUICK_S = 30.0

#: Signals by which the kernel ends a process that has gone wrong. Not SIGABRT, which a program sends itself when it
#: gives up, nor those by which somebody asks it to go.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGKILL)
#: A shell, and whoever does as shells do, ends with this and the number when a signal has ended its child.
_BY_SIGNAL = 128

#: What CUDA and NVML say when the device or its host has failed, in the words of CUDA's runtime, as names of the
#: runtime (cudaError…) and the driver (CUDA_ERROR_…), in torch's words and in pynvml's. All other errors of CUDA are
#: mostly a script's own (an index out of bounds, a wrong ordinal, a build for other cards) and count for nothing.
_DEVICE_FAILED = re.compile(
    rb"CUDA-capable device\(s\) is/are busy or unavailable|no CUDA-capable device is detected"
    rb"|uncorrectable (?:ECC|NVLink) error|CUDA error: unknown error|RuntimeError: CUDA unknown error"
    rb"|No CUDA GPUs are available|system not yet initialized|unsupported display driver / cuda driver combination"
    rb"|OS call failed or operation not supported on this OS|MPS client failed to connect"
    rb"|(?:CUDA_ERROR_|cudaError)(?:DEVICES?_?UNAVAILABLE|NO_?DEVICE|ECC_?UNCORRECTABLE|NVLINK_?UNCORRECTABLE"
    rb"|SYSTEM_?NOT_?READY|SYSTEM_?DRIVER_?MISMATCH|OPERATING_?SYSTEM|MPS_?CONNECTION_?FAILED|UNKNOWN)\b"
    rb"|Failed to initialize NVML: [ -~]{1,60}|Driver/library version mismatch|GPU is lost"
    rb"|NVML_?ERROR_?(?:GPU_?IS_?LOST|RESET_?REQUIRED|DRIVER_?NOT_?LOADED|LIB_?RM_?VERSION_?MISMATCH|UNKNOWN)\b",
    re.IGNORECASE,
)
_CUDA_FAILED = re.compile(rb"CUDA error|CUDA_ERROR_|cudaError|CUDA runtime error|device-side assert", re.IGNORECASE)
_ASSERTED = re.compile(rb"device-side assert|cudaErrorAssert|CUDA_ERROR_ASSERT", re.IGNORECASE)

#: Why a host can fail to start a process that is well itself.
_HOST_FAILED = tuple(os.strerror(code) for code in (EAGAIN, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS, ESTALE))
#: As the shim begins its reason where it had not come to the job's own words yet.
_NOT_YET_THE_JOBS = "cannot prepare the process"


def speaks_well(ending: Ending, duration_s: float | None) -> bool:
    """Return whether a run that ended so shows that its devices work: it succeeded, or it lived for a while."""
    succeeded = ending.kind is EndingKind.EXITED and ending.exit_code == 0
    return succeeded or (duration_s is not None and duration_s >= QUICK_S)


def blame(ending: Ending, duration_s: float | None, log_tail: bytes, *, kind: DeviceKind | None) -> str | None:
    """Return in words why a run's end looks like its device's or its host's fault, None where it does not.

    What CUDA says decides, where it says anything; else how the process ended. *kind* is that of the run's devices:
    off a GPU, a script that wants CUDA has itself to blame. A run that was lost is judged by who saw it.
    """
    if ending.kind is EndingKind.REFUSED:
        return _host_refused(ending.detail)
    by_itself = ending.kind in {EndingKind.EXITED, EndingKind.SIGNALLED}
    if not by_itself or duration_s is None or speaks_well(ending, duration_s):
        return None
    if says_out_of_memory(log_tail) or _ASSERTED.search(log_tail):
        return None  # whatever CUDA says after that comes of it
    failed = _DEVICE_FAILED.search(log_tail)
    if failed is not None or _CUDA_FAILED.search(log_tail):
        return failed[0].decode("ascii") if failed and kind is DeviceKind.GPU else None
    return _crash(ending)


def _host_refused(detail: str) -> str | None:
    host_failed = detail.startswith(_NOT_YET_THE_JOBS) or any(reason in detail for reason in _HOST_FAILED)
    return detail if host_failed else None


def _crash(ending: Ending) -> str | None:
    """Return which crash ended the process, or a child of the shell that it was."""
    number = ending.signal if ending.kind is EndingKind.SIGNALLED else (ending.exit_code or 0) - _BY_SIGNAL
    return next((f"killed by {crash.name}" for crash in _CRASHES if crash == number), None)
