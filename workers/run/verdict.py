"""The final ending of a run: decides whether the run failed because a device was out of memory.

Pure, except for ``tail``, which reads a log.
"""

from __future__ import annotations

import re
import signal
from dataclasses import replace
from pathlib import Path

from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.system.logs import last_bytes
from gpuqueue.text.units import format_bytes
from workers.run.torch_report import InsideReport

#: How much of the log's end is searched, in bytes. It contains a final traceback, and rarely an OOM that was handled.
TAIL_BYTES = 64 * 1024
#: Messages that programs print when a device is out of memory.
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
    """Return *ending*, or OUT_OF_MEMORY if the program failed by itself and reported that the device was full.

    The report is in *report*, from the run's processes, or at the end of the log. The ending of a run that succeeded,
    or that gpuqueue or a signal from outside ended, is not changed. The ending of a run that the watchdog ended gets
    the figures as its detail. *circumstances* describes the free memory and the neighbours.
    """
    detail = f"asked {format_bytes(asked_bytes)}"
    if peak_bytes is not None:
        detail += f", peak {format_bytes(peak_bytes)}"
    if circumstances:
        detail += f", {circumstances}"
    if ending.kind is EndingKind.OUT_OF_MEMORY:  # the watchdog ended the run
        return replace(ending, detail=f"{detail}; {ending.detail}" if ending.detail else detail)
    if not _failed_by_itself(ending):
        return ending
    if not (report is not None and report.out_of_memory) and not shows_out_of_memory(log_tail):
        return ending
    status = ending.exit_code if ending.signal is None else -ending.signal
    return Ending.stopped(EndingKind.OUT_OF_MEMORY, status, detail)


def _failed_by_itself(ending: Ending) -> bool:
    """Return whether the program itself failed. C++ programs end by SIGABRT after an uncaught exception."""
    if ending.kind is EndingKind.SIGNALLED:
        return ending.signal == signal.SIGABRT
    return ending.kind is EndingKind.EXITED and ending.exit_code != 0


def shows_out_of_memory(log_tail: bytes) -> bool:
    """Return whether the end of a log reports that a device was out of memory."""
    return _FULL.search(log_tail) is not None


def tail(log: Path) -> bytes:
    """Return the last ``TAIL_BYTES`` of a log, empty if there is none."""
    return last_bytes(log, TAIL_BYTES)
