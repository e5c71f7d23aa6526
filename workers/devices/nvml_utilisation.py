"""The utilisation of a GPU by each process from NVML.

A function here raises Refusal if NVML gives an error that it does not handle.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pynvml

from gpuqueue.model.device import Utilisation
from workers.devices.nvml_calls import Session

#: Errors that mean that no process used the GPU: no entry was found, or pynvml got an empty list at its first call.
_NOBODY = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS})
#: The largest valid figure. Some drivers give garbage instead of a figure that they do not have.
_MOST = 100


def utilisations(session: Session, handle: Any, since_us: int) -> tuple[dict[int, Utilisation], int] | None:
    """Return the utilisation by each process after *since_us*, and the time of the newest figure.

    Times are in microseconds on the driver's clock. The driver lists only processes that used the GPU. For several
    figures of one process, the result is their mean. Video engines count as well: a process that decodes works.

    Returns:
        None if the driver does not report it, or reports impossible figures.
    """
    entries = session.maybe("nvmlDeviceGetProcessUtilization", handle, since_us, empty=_NOBODY)
    if entries is None:
        return None
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for entry in entries:
        busy, memory = max(entry.smUtil, entry.encUtil, entry.decUtil), entry.memUtil
        if busy > _MOST or memory > _MOST:
            return None
        found[int(entry.pid)].append((busy / _MOST, memory / _MOST))
    means = {
        pid: Utilisation(busy=_mean([busy for busy, _ in each]), memory=_mean([memory for _, memory in each]))
        for pid, each in found.items()
    }
    return means, max((int(entry.timeStamp) for entry in entries), default=since_us)


def _mean(figures: list[float]) -> float:
    return sum(figures) / len(figures)
