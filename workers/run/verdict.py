"""How a run ended, seen with everything that is known of it: did it die for want of device memory? Pure."""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from pathlib import Path

from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.system.logs import last_bytes
from gpuqueue.text.units import format_bytes
from workers.run.torch_report import InsideReport

#: How much of the log's end is looked at, in bytes: a traceback is there, an OOM that was survived is mostly not.
TAIL_BYTES = 64 * 1024
#: What programs print when a device's memory is full.
_FULL = re.compile(
    rb"CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    rb"|torch\.OutOfMemoryError|c10::OutOfMemoryError|cupy\.cuda\.memory\.OutOfMemoryError"
    rb"|(Xla|Jax)RuntimeError: RESOURCE_EXHAUSTED|ResourceExhaustedError.*OOM when allocating"
)


def judged(
    ending: Ending,
    report: InsideReport | None,
    log_tail: bytes,
    *,
    asked_bytes: int,
    peak_bytes: int | None,
    circumstances: str = "",
) -> Ending:
    """Return *ending*, or OUT_OF_MEMORY if the job failed by itself and says that the device's memory was full.

    Its processes say so (*report*), or the end of its log does. A run that ended well, or that gpuqueue or somebody
    else's signal ended, is left as it is, whatever it printed; one that the watchdog ended gets the figures. The
    *circumstances* are what was free, and who else was there.
    """
    detail = f"asked {format_bytes(asked_bytes)}"
    if peak_bytes is not None:
        detail += f", peak {format_bytes(peak_bytes)}"
    if circumstances:
        detail += f", {circumstances}"
    if ending.kind is EndingKind.OUT_OF_MEMORY:  # the watchdog ended it
        return replace(ending, detail=detail)
    if not _failed_by_itself(ending):
        return ending
    if not (report is not None and report.out_of_memory) and not says_out_of_memory(log_tail):
        return ending
    status = ending.exit_code if ending.signal is None else -ending.signal
    return Ending.stopped(EndingKind.OUT_OF_MEMORY, status, detail)


def _failed_by_itself(ending: Ending) -> bool:
    """Return whether the program itself gave up: C++ does that by SIGABRT where nobody catches its exception."""
    if ending.kind is EndingKind.SIGNALLED:
        return ending.signal == signal.SIGABRT
    return ending.kind is EndingKind.EXITED and ending.exit_code != 0


def says_out_of_memory(log_tail: bytes) -> bool:
    """Return whether the end of a log says that a device's memory was full."""
    return _FULL.search(log_tail) is not None


def tail(log: Path) -> bytes:
    """Return the end of a log, empty if there is none."""
    return last_bytes(log, TAIL_BYTES)
