"""Decides whether a run that failed quickly failed because of its script or because of its device. Pure.

A broken device that kills every job within seconds is always free, so it would take the whole queue. Three such
failures in a row drain the device (``count_deaths`` in gpuqueue/queue/lua/shared/drains.lua). A broken script fails
quickly on every device, and must not drain any. So a failure counts against the device only if the script is an
unlikely cause. docs/explanation/draining.md describes this for users.
"""

from __future__ import annotations

import os
import re
import signal
from errno import EAGAIN, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS, ESTALE

from gpuqueue.model.device import DeviceKind
from gpuqueue.model.run import Ending, EndingKind
from workers.run.verdict import shows_out_of_memory

#: A failure within so many seconds of the start is a quick one. Long enough to import torch from a slow disk.
QUICK_S = 30.0

#: Signals by which the kernel ends a faulty process. Not SIGABRT, which a program sends to itself when it gives up,
#: and not the signals that ask a process to exit.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGKILL)
#: A shell exits with this number plus the signal number if a signal has ended its child.
_BY_SIGNAL = 128

#: Messages for a failure of the device or its host: texts of CUDA's runtime, error names of the runtime (cudaError…)
#: and of the driver (CUDA_ERROR_…), and texts of torch and pynvml. Other CUDA errors mostly have their cause in the
#: script (an index out of bounds, a wrong ordinal, a build for other cards), and count against no device.
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

#: Messages of the errors by which a host fails to start a valid command.
_HOST_FAILED = tuple(os.strerror(code) for code in (EAGAIN, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS, ESTALE))
#: How the shim's reasons for a failure begin before it knows the job's command. These reasons name nothing of the job.
_NOT_YET_THE_JOBS = ("cannot prepare the process", "cannot make a control group", "cannot make a process")


def clears_devices(ending: Ending, duration_s: float | None) -> bool:
    """Return whether an ending shows that the devices work: the run succeeded, or lasted at least ``QUICK_S``."""
    succeeded = ending.kind is EndingKind.EXITED and ending.exit_code == 0
    return succeeded or (duration_s is not None and duration_s >= QUICK_S)


def device_fault(ending: Ending, duration_s: float | None, log_tail: bytes, *, kind: DeviceKind | None) -> str | None:
    """Return why the device or the host is the likely cause of a run's failure, or None if it is not.

    A CUDA error in the log decides if there is one; otherwise the way in which the process ended does. *kind* is the
    kind of the run's devices: a CUDA error without a GPU is the script's fault. Lost runs are judged elsewhere
    (``Witness.lost``).
    """
    if ending.kind is EndingKind.REFUSED:
        return host_refused(ending.detail)
    by_itself = ending.kind in {EndingKind.EXITED, EndingKind.SIGNALLED}
    if not by_itself or duration_s is None or clears_devices(ending, duration_s):
        return None
    if ending.detail:  # the kernel killed it for lack of host memory
        return None
    if shows_out_of_memory(log_tail) or _ASSERTED.search(log_tail):
        return None  # later CUDA errors in the log are consequences of this one
    failed = _DEVICE_FAILED.search(log_tail)
    if failed is not None or _CUDA_FAILED.search(log_tail):
        return failed[0].decode("ascii") if failed and kind is DeviceKind.GPU else None
    return _crash(ending)


def host_refused(detail: str) -> str | None:
    """Return why the host is the cause of a failed start, or None if it is not.

    The reason names neither program nor directory of the job, because everybody sees the reasons of a device.
    """
    if detail.startswith(_NOT_YET_THE_JOBS):
        return detail
    return next((reason for reason in _HOST_FAILED if reason in detail), None)


def _crash(ending: Ending) -> str | None:
    """Return which crash signal ended the process or, if the process is a shell, its child. None if there is none."""
    number = ending.signal if ending.kind is EndingKind.SIGNALLED else (ending.exit_code or 0) - _BY_SIGNAL
    return next((f"killed by {crash.name}" for crash in _CRASHES if crash == number), None)
