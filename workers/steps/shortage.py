"""The facts about a run that died for lack of device memory: what it had tried, and who had taken its memory. Pure.

The queue decides from these facts whether the job runs again, and with how much memory.
"""

from __future__ import annotations

import re

from gpuqueue.model.device import DeviceKind
from gpuqueue.model.mem_retry import Shortage
from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.text.units import GIB, MIB
from workers.measure.neighbours import Snapshot
from workers.run.torch_report import InsideReport

#: How the messages of frameworks name the allocation that failed: PyTorch, then JAX, XLA and CuPy.
_TRIED = re.compile(
    rb"Tried to allocate (?P<size>[0-9]{1,9}(?:\.[0-9]{1,4})?) (?P<unit>bytes|[KMG]i?B)"
    rb"|(?:trying to allocate|Out of memory allocating) (?P<bytes>[0-9][0-9,]{0,24}) bytes"
    rb"|Failed to allocate request for [^(\n]{1,20}\((?P<request>[0-9]{1,18})B\)"
)
_UNITS = {b"bytes": 1, b"KiB": 1024, b"KB": 1024, b"MiB": MIB, b"MB": MIB, b"GiB": GIB, b"GB": GIB}
#: Messages of an allocation of pinned host memory, which CUDA also reports as "out of memory".
_ON_HOST = re.compile(rb"pin_memory|cudaHostAlloc|cuMemHostAlloc|CachingHostAllocator|PinnedMemory|DefaultCPUAllocator")
#: A size that is larger than any device. The job writes the texts, so they may hold anything.
_ABSURD = 2**50


def shortage_of(
    ending: Ending,
    report: InsideReport | None,
    log_tail: bytes,
    *,
    kind: DeviceKind | None,
    lease_bytes: int,
    peak_bytes: int | None,
    snapshot: Snapshot | None,
) -> Shortage | None:
    """Return the facts about a run with this *ending*, None if it did not lack device memory.

    A run on a CPU, or one that failed to allocate host memory, lacks none.

    Args:
        ending: The final ending.
        report: What the run's processes reported.
        log_tail: The end of the log.
        kind: The kind of the run's devices.
        lease_bytes: What was allocated to the run on each device.
        peak_bytes: The most that the run used on the device that was full.
        snapshot: The last sample of that device with the run alive.

    """
    if ending.kind is not EndingKind.OUT_OF_MEMORY or kind is DeviceKind.CPU:
        return None
    tried = tried_bytes(report.message.encode()) if report is not None else None
    tried = tried_bytes(log_tail) if tried is None else tried
    if tried is None and _ON_HOST.search(log_tail):
        return None
    needed_bytes = (peak_bytes or 0) + (tried or 0)
    blamed = snapshot.blamed(lease_bytes) if snapshot is not None and needed_bytes <= lease_bytes else None
    return Shortage(peak_bytes=peak_bytes, tried_bytes=tried, blamed=blamed)


def tried_bytes(text: bytes) -> int | None:
    """Return the bytes of the last allocation of which *text* says that it failed, None if it says none."""
    found = None
    for each in _TRIED.finditer(text):
        found = each
    if found is None:
        return None
    if found["size"] is not None:
        size = round(float(found["size"]) * _UNITS[found["unit"]])
    else:
        size = int((found["bytes"] or found["request"]).replace(b",", b""))
    return size if 0 < size < _ABSURD else None
