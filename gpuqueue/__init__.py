"""gpuqueue: the job queue for a team that shares GPUs.

    >>> from gpuqueue import Client
    >>> job = Client().submit(["python", "train.py"], mem="6G")

Names are resolved when they are first used: importing the package costs nothing.
"""

from __future__ import annotations

from gpuqueue.version import VERSION

#: As typing has it: to import that here would take longer than all the rest.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from gpuqueue.client import Client
    from gpuqueue.device import Device, DeviceWish, Peak, PeakSource
    from gpuqueue.errors import GpuQueueError
    from gpuqueue.job import Job, JobSpec, JobState, Level
    from gpuqueue.run import Ending, EndingKind, Record, Run
    from gpuqueue.settings import Settings

__version__ = VERSION

_HOMES = {
    "Client": "gpuqueue.client",
    "Device": "gpuqueue.device",
    "DeviceWish": "gpuqueue.device",
    "Ending": "gpuqueue.run",
    "EndingKind": "gpuqueue.run",
    "GpuQueueError": "gpuqueue.errors",
    "Job": "gpuqueue.job",
    "JobSpec": "gpuqueue.job",
    "JobState": "gpuqueue.job",
    "Level": "gpuqueue.job",
    "Peak": "gpuqueue.device",
    "PeakSource": "gpuqueue.device",
    "Record": "gpuqueue.run",
    "Run": "gpuqueue.run",
    "Settings": "gpuqueue.settings",
}

__all__ = [
    "Client",
    "Device",
    "DeviceWish",
    "Ending",
    "EndingKind",
    "GpuQueueError",
    "Job",
    "JobSpec",
    "JobState",
    "Level",
    "Peak",
    "PeakSource",
    "Record",
    "Run",
    "Settings",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - only where a name is used

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
