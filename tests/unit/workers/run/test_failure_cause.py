"""Tests of the cause of a run that failed at once: the script or the device."""

from __future__ import annotations

import errno
import os
import signal

import pytest

from gpuqueue.model.device import DeviceKind
from gpuqueue.model.run import Ending, EndingKind
from workers.run.verdict import QUICK_S, clears_devices, device_fault

FAILED = Ending.from_status(1)
TRACEBACK = b'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'


def judged(
    ending: Ending = FAILED,
    log: bytes = b"",
    *,
    after_s: float | None = 2.0,
    kind: DeviceKind | None = DeviceKind.GPU,
) -> str | None:
    """Return the cause for a run that ended with *ending* and *log*.

    By default it ended two seconds after its start on a GPU.
    """
    return device_fault(ending, after_s, TRACEBACK + log + b"\n", kind=kind)


@pytest.mark.parametrize(
    "line",
    [
        b"ModuleNotFoundError: No module named 'torch'",
        b"ImportError: libcudart.so.12: cannot open shared object file",
        b"AssertionError: Torch not compiled with CUDA enabled",
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        b"RuntimeError: CUDA error: out of memory",
        b"RuntimeError: CUDA error: device-side assert triggered",
        b"device-side assert triggered\nCUDA error: unknown error",
        b"CUDA_ERROR_ASSERT: device-side assert triggered",
        b"CUDA out of memory\nCUDA-capable device(s) is/are busy or unavailable",
        b"RuntimeError: CUDA error: an illegal memory access was encountered",
        b"RuntimeError: CUDA error: invalid device ordinal",
        b"RuntimeError: CUDA error: no kernel image is available for execution on the device",
        b"RuntimeError: CUDA error: initialization error",
        b"CUDA_ERROR_ILLEGAL_ADDRESS",
        b"RuntimeError: CUDA error: MPS client has been terminated by the server",  # after a fault of another client
        b"CUDA_ERROR_MPS_CLIENT_TERMINATED",
        b"cudaErrorInvalidValue: invalid argument",
        b"CUDA driver version is insufficient for CUDA runtime version",
        b"UserWarning: Can't initialize NVML",
        b"NVMLError_NotSupported: Not Supported",
        b"",
    ],
)
def test_a_script_s_own_fault_counts_for_nothing(line: bytes) -> None:
    """A script's own error does not count against the device. A sweep over a broken script must not drain a card."""
    assert judged(log=line) is None
    assert judged(Ending.from_status(-signal.SIGABRT), line) is None  # C++ aborts where Python raises


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"torch.AcceleratorError: CUDA error: unknown error", "CUDA error: unknown error"),
        (b"RuntimeError: CUDA unknown error - this may be due to an incorrectly set up", "RuntimeError: CUDA unknown"),
        (
            b"RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "CUDA-capable device(s) is/are busy or unavailable",
        ),
        (b"no CUDA-capable device is detected", "no CUDA-capable device is detected"),
        (b"RuntimeError: No CUDA GPUs are available", "No CUDA GPUs are available"),
        (b"CUDA error: uncorrectable ECC error encountered", "uncorrectable ECC error"),
        (b"CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC", "CUDA_ERROR_ECC_UNCORRECTABLE"),
        (b"cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorECCUncorrectable: ", "cudaErrorECCUncorrectable"),
        (b"CUDARuntimeError: cudaErrorDevicesUnavailable: CUDA-capable", "cudaErrorDevicesUnavailable"),
        (b"failed call to cuInit: CUDA_ERROR_NO_DEVICE: no device", "CUDA_ERROR_NO_DEVICE"),
        (b"failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error", "CUDA_ERROR_UNKNOWN"),
        (b"CUDA error: system not yet initialized", "system not yet initialized"),
        (b"CUDA error: uncorrectable NVLink error detected during the execution", "uncorrectable NVLink error"),
        (
            b"Failed to initialize NVML: Driver/library version mismatch",
            "Failed to initialize NVML: Driver/library version mismatch",
        ),
        (b"pynvml.nvml.NVMLError_GpuIsLost: GPU is lost", "NVMLError_GpuIsLost"),
        (b"nvmlDeviceGetHandleByIndex: NVML_ERROR_RESET_REQUIRED", "NVML_ERROR_RESET_REQUIRED"),
        (b"CUDA error: an illegal memory access\nCUDA error: uncorrectable ECC error encountered", "uncorrectable ECC"),
    ],
)
def test_what_cuda_says_of_the_device_is_held_against_it(line: bytes, why: str) -> None:
    """A CUDA error about the device counts against it, however the process ended.

    Without a GPU it is the script's error.
    """
    for ending in (FAILED, Ending.from_status(-signal.SIGABRT), Ending.from_status(-signal.SIGSEGV)):
        assert (judged(ending, line) or "").startswith(why)
        assert judged(ending, line, kind=DeviceKind.CPU) is None


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGKILL])
@pytest.mark.parametrize("kind", [DeviceKind.GPU, DeviceKind.SIMULATED, None])
def test_a_crash_is_held_against_it(number: signal.Signals, kind: DeviceKind | None) -> None:
    """A crash counts against the device, by signal or as 128 + n from a shell."""
    assert f"killed by {number.name}" == judged(Ending.from_status(-number), kind=kind)
    assert f"killed by {number.name}" == judged(Ending.from_status(128 + number), kind=kind)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT, signal.SIGUSR1])
def test_a_signal_that_somebody_sent_is_not(number: signal.Signals) -> None:
    """A sent signal does not count: a user's `kill`, a stop by systemd, a program's own abort()."""
    assert judged(Ending.from_status(-number)) is None
    assert judged(Ending.from_status(128 + number)) is None


def test_a_lack_of_host_memory_is_not_held_against_it() -> None:
    """A kill by the kernel for host memory does not count against the device: three such jobs would drain it."""
    for status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        assert judged(Ending.from_status(status, "the host ran out of memory")) is None


def test_a_crash_after_a_script_s_own_error_of_cuda_is_its_own() -> None:
    """A crash after the script's own CUDA error does not count against the device.

    CUDA's teardown may crash with a broken context.
    """
    assert judged(Ending.from_status(-signal.SIGSEGV), b"CUDA error: device-side assert triggered") is None
    assert judged(Ending.from_status(-signal.SIGSEGV), b"CUDA error: invalid device ordinal") is None


@pytest.mark.parametrize("after_s", [QUICK_S, 3600.0, None])
def test_only_a_quick_death_counts(after_s: float | None) -> None:
    """Only a quick failure counts. A failure with an unknown duration does not."""
    assert judged(Ending.from_status(-signal.SIGSEGV), after_s=after_s) is None
    assert judged(Ending.from_status(-signal.SIGSEGV), after_s=QUICK_S - 0.1) is not None


@pytest.mark.parametrize(
    "kind", [EndingKind.CANCELLED, EndingKind.TIMED_OUT, EndingKind.OUT_OF_MEMORY, EndingKind.PREEMPTED]
)
def test_what_gpuqueue_ended_is_nobody_s_fault(kind: EndingKind) -> None:
    """A run that gpuqueue ended does not count, even if it needed SIGKILL and whatever the log contains."""
    assert judged(Ending.stopped(kind, -signal.SIGKILL), b"CUDA error: unknown error") is None


@pytest.mark.parametrize(
    ("detail", "why"),
    [
        (f"[Errno 11] {os.strerror(errno.EAGAIN)}", os.strerror(errno.EAGAIN)),  # fork
        (
            f"cannot prepare the process: {os.strerror(errno.EPERM)}",
            f"cannot prepare the process: {os.strerror(errno.EPERM)}",
        ),
        (
            f"cannot make a process: {os.strerror(errno.EAGAIN)}",
            f"cannot make a process: {os.strerror(errno.EAGAIN)}",
        ),
        (f"cannot start python: {os.strerror(errno.ENOMEM)}", os.strerror(errno.ENOMEM)),
        (f"cannot enter the working directory /data: {os.strerror(errno.ESTALE)}", os.strerror(errno.ESTALE)),
        (f"[Errno 28] {os.strerror(errno.ENOSPC)}: 'log'", os.strerror(errno.ENOSPC)),
        (f"cannot start trainn.py: {os.strerror(errno.ENOENT)}", None),
        (f"cannot start ./run.sh: {os.strerror(errno.EACCES)}", None),
        (f"cannot start ./run.sh: {os.strerror(errno.ENOEXEC)}", None),
        (f"cannot enter the working directory /gone: {os.strerror(errno.ENOENT)}", None),
    ],
)
def test_a_refusal_counts_where_the_host_is_the_reason(detail: str, why: str | None) -> None:
    """A refusal counts if the host is the reason.

    A host that cannot fork refuses job after job, while a wrong path is the user's error. Everybody sees why a device
    is drained, so the reason names neither program nor directory.
    """
    assert why == device_fault(Ending.refused(detail), None, b"", kind=DeviceKind.GPU)


@pytest.mark.parametrize(
    ("ending", "duration_s", "well"),
    [
        (Ending.from_status(0), 0.1, True),
        (Ending.from_status(0), None, True),
        (Ending.from_status(1), QUICK_S, True),
        (Ending.from_status(-signal.SIGSEGV), 3600.0, True),
        (Ending.stopped(EndingKind.CANCELLED, -15), 3600.0, True),
        (Ending.from_status(1), 2.0, False),
        (Ending.stopped(EndingKind.CANCELLED, -15), 2.0, False),
        (Ending.refused("no such program"), None, False),
    ],
)
def test_a_success_or_some_time_clears_the_devices(ending: Ending, duration_s: float | None, *, well: bool) -> None:
    """A success or a long run counts for the device.

    A quick failure through the script's own error counts neither for nor against it.
    """
    assert well is clears_devices(ending, duration_s)
