"""What NVML says of the memory of a GPU: how much there is, and which process holds how much of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pynvml

from workers.devices.nvml_calls import UNSUPPORTED, Refusal, Session

#: Drivers before R510 have no second version of the memory call.
_NO_MEMORY_V2 = frozenset({pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH})
#: What stands for a figure that the driver will not tell.
_NOT_AVAILABLE = 2**64 - 1
#: How often a process list that grew while it was read is read again.
_LIST_TRIES = 5
#: How often a look is taken again in which the memory moved: an idle card gives an even one at once.
_LOOKS = 3


def memory(session: Session, handle: Any) -> Any:
    """Return NVML's memory figures; total and free mean the same in both versions.

    Raises:
        Refusal: NVML gave an error, or has no figures for this GPU.

    """
    if session.memory_v2:
        try:
            return session.ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        except Refusal as refusal:
            if refusal.code not in _NO_MEMORY_V2:
                raise
            session.memory_v2 = False
    return session.ask(pynvml.nvmlDeviceGetMemoryInfo, handle)


def look(session: Session, handle: Any) -> tuple[int, int, dict[int, int | None]]:
    """Return a GPU's memory, how much of it is free, and what each process holds, as if it were one question.

    They are several, and what is not the processes' is got by taking one from the other. A process that gives memory
    back between the two would hide as much of somebody else's. So the memory is asked for before and after the list:
    where it is the same nothing moved, and where it always moves the fuller of both counts.

    Raises:
        Refusal: NVML gave an error.

    """
    before = memory(session, handle)
    for _ in range(_LOOKS):
        held = processes(session, handle)
        after = memory(session, handle)
        free_bytes = min(int(before.free), int(after.free))
        if before.free == after.free:
            break
        before = after
    return int(after.total), free_bytes, held


def processes(session: Session, handle: Any) -> dict[int, int | None]:
    """Return every process on the GPU with its bytes, None where the driver will not say.

    Raises:
        Refusal: NVML gave an error.

    """
    entries = _list(session, pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    # Some cards cannot draw, and some drivers know no MPS, whose clients have a list of their own. The compute list
    # is not forgiven: without it every job would seem to hold 0.
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
    """Return the most that each of *pids* ever held, as the driver kept it; ended processes are still known.

    Only an administrator can switch accounting on, a MIG instance never has it, and a pid that was used twice is told
    of the later one (nvml.h, nvmlDeviceGetAccountingStats).

    Raises:
        Refusal: the GPU or the driver is gone.

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
    """Return each pid once with its largest figure: one that computes and draws is in both lists."""
    held: dict[int, int | None] = {}
    for pid, size_bytes in entries:
        known = held.get(pid)
        held[pid] = size_bytes if known is None else max(known, size_bytes or 0)
    return held


def _list(session: Session, call: Callable[..., Iterable[Any]], handle: Any) -> list[tuple[int, int | None]]:
    """Return one process list, read again when it grew under pynvml's hands.

    Raises:
        Refusal: NVML gave an error.

    """
    tries_left = _LIST_TRIES
    while True:
        tries_left -= 1
        try:
            return [(int(entry.pid), entry.usedGpuMemory) for entry in session.ask(call, handle)]
        except Refusal as refusal:
            if refusal.code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or not tries_left:
                raise
