"""How a run ended, seen with everything that is known of it: did it die for want of device memory? Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from gpuqueue.logs import last_bytes
from gpuqueue.run import Ending, EndingKind
from gpuqueue.units import format_bytes
from workers.inside_report import InsideReport

#: How much of the log's end is looked at, in bytes: a traceback is there, an OOM that was survived is mostly not.
TAIL_BYTES = 64 * 1024
#: What programs print when a device's memory is full.
_FULL = re.compile(
    rb"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|torch\.OutOfMemoryError"
    rb"|XlaRuntimeError: RESOURCE_EXHAUSTED|cupy\.cuda\.memory\.OutOfMemoryError"
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

    Its processes say so (*report*), or the end of its log does. A run that ended well, or that a signal or
    gpuqueue ended, is left as it is, whatever it printed; one that the watchdog ended gets the figures. The
    *circumstances* are what was free, and who else was there.
    """
    detail = f"asked {format_bytes(asked_bytes)}"
    if peak_bytes is not None:
        detail += f", peak {format_bytes(peak_bytes)}"
    if circumstances:
        detail += f", {circumstances}"
    if ending.kind is EndingKind.OUT_OF_MEMORY:  # the watchdog ended it
        return replace(ending, detail=detail)
    if ending.kind is not EndingKind.EXITED or ending.exit_code == 0:
        return ending
    if not (report is not None and report.out_of_memory) and not says_out_of_memory(log_tail):
        return ending
    return Ending.stopped(EndingKind.OUT_OF_MEMORY, ending.exit_code, detail)


def says_out_of_memory(log_tail: bytes) -> bool:
    """Return whether the end of a log says that a device's memory was full."""
    return _FULL.search(log_tail) is not None


def tail(log: Path) -> bytes:
    """Return the end of a log, empty if there is none."""
    return last_bytes(log, TAIL_BYTES)
