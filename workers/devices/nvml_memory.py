"""The memory of a GPU from NVML: its size, the free bytes, and the bytes of each process.

A function here raises Refusal if NVML gives an error that it does not handle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pynvml

from workers.devices.nvml_calls import UNSUPPORTED, Refusal, Session

#: Errors of drivers before R510, which lack version 2 of the memory call.
_NO_MEMORY_V2 = frozenset({pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH})
#: The value of a figure that the driver does not report.
_NOT_AVAILABLE = 2**64 - 1
#: How often a process list is read at most, if it grows while it is read.
_LIST_TRIES = 5
#: How often a sample is taken at most, if the free memory changes during the sample.
_SAMPLES = 3


def memory(session: Session, handle: Any) -> Any:
    """Return NVML's memory figures. Total and free mean the same in versions 1 and 2 of the call."""
    if session.memory_v2:
        try:
            return session.ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        except Refusal as refusal:
            if refusal.code not in _NO_MEMORY_V2:
                raise
            session.memory_v2 = False
    return session.ask(pynvml.nvmlDeviceGetMemoryInfo, handle)


def sample(session: Session, handle: Any) -> tuple[int, int, dict[int, int | None]]:
    """Return a GPU's total bytes, its free bytes, and the bytes of each process, as one consistent sample.

    NVML needs several calls for this. The memory of unlisted processes is the used memory minus that of the listed
    ones, so a process that frees memory between two calls would hide that much of it. The free memory is therefore read
    before and after the process list. If both values are equal, the sample is consistent. If they differ in every
    attempt, the smaller free value of the last attempt is used.
    """
    before = memory(session, handle)
    for _ in range(_SAMPLES):
        held = processes(session, handle)
        after = memory(session, handle)
        free_bytes = min(int(before.free), int(after.free))
        if before.free == after.free:
            break
        before = after
    return int(after.total), free_bytes, held


def processes(session: Session, handle: Any) -> dict[int, int | None]:
    """Return every process on the GPU with its bytes, None if the driver does not report them."""
    entries = _list(session, pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    # Some cards do not support graphics, and some drivers do not support MPS, whose clients have a list of their own.
    # An error of the compute list is always raised: without that list every job would seem to use 0 bytes.
    for name in ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"):
        call = getattr(pynvml, name, None)
        if call is None:
            continue
        try:
            entries += _list(session, call, handle)
        except Refusal as refusal:
            if refusal.code not in UNSUPPORTED:
                raise
    return merged(entries)


def accounted(session: Session, handle: Any, pids: Iterable[int]) -> dict[int, int]:
    """Return the driver's own peak memory of each of *pids*, in bytes, including processes that have ended.

    Only an administrator can enable accounting, and MIG instances do not support it. The result is empty without
    accounting. For a reused pid the figure is that of the later process (nvml.h, nvmlDeviceGetAccountingStats).
    """
    if session.maybe("nvmlDeviceGetAccountingMode", handle) != pynvml.NVML_FEATURE_ENABLED:
        return {}
    stats = {pid: session.maybe("nvmlDeviceGetAccountingStats", handle, pid) for pid in pids}
    return {
        pid: int(each.maxMemoryUsage)
        for pid, each in stats.items()
        if each is not None and each.maxMemoryUsage not in (None, _NOT_AVAILABLE)
    }


def merged(entries: Iterable[tuple[int, int | None]]) -> dict[int, int | None]:
    """Return the largest figure of each pid. A process that uses compute and graphics is in both lists."""
    held: dict[int, int | None] = {}
    for pid, size_bytes in entries:
        known = held.get(pid)
        held[pid] = size_bytes if known is None else max(known, size_bytes or 0)
    return held


def _list(session: Session, call: Callable[..., Iterable[Any]], handle: Any) -> list[tuple[int, int | None]]:
    """Return one process list. It is read again if it grew between the two NVML calls that pynvml makes for it."""
    tries_left = _LIST_TRIES
    while True:
        tries_left -= 1
        try:
            return [(int(entry.pid), entry.usedGpuMemory) for entry in session.ask(call, handle)]
        except Refusal as refusal:
            if refusal.code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or not tries_left:
                raise
