"""gpuqueue, the job queue for a team that shares GPUs.

    >>> from gpuqueue import Client
    >>> job = Client().jobs.submit(["python", "train.py"], mem="6G")

Each name is imported on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from gpuqueue.version import VERSION

#: Same as ``typing.TYPE_CHECKING``. Importing ``typing`` here would take longer than the rest of the package.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from gpuqueue.client import Client
    from gpuqueue.errors import GpuQueueError, NoResult
    from gpuqueue.executor.calls import Call
    from gpuqueue.executor.executor import Executor, task
    from gpuqueue.model.device import Device, DeviceFilter, Peak, PeakSource
    from gpuqueue.model.job import Job, JobState
    from gpuqueue.model.job_request import JobRequest
    from gpuqueue.model.job_spec import JobSpec, Priority
    from gpuqueue.model.run import Ending, EndingKind, Record, Run
    from gpuqueue.settings.settings import Settings

__version__ = VERSION

_HOMES = {
    "Call": "gpuqueue.executor.calls",
    "Client": "gpuqueue.client",
    "Device": "gpuqueue.model.device",
    "DeviceFilter": "gpuqueue.model.device",
    "Ending": "gpuqueue.model.run",
    "EndingKind": "gpuqueue.model.run",
    "Executor": "gpuqueue.executor.executor",
    "GpuQueueError": "gpuqueue.errors",
    "Job": "gpuqueue.model.job",
    "JobRequest": "gpuqueue.model.job_request",
    "JobSpec": "gpuqueue.model.job_spec",
    "JobState": "gpuqueue.model.job",
    "NoResult": "gpuqueue.errors",
    "Priority": "gpuqueue.model.job_spec",
    "Peak": "gpuqueue.model.device",
    "PeakSource": "gpuqueue.model.device",
    "Record": "gpuqueue.model.run",
    "Run": "gpuqueue.model.run",
    "Settings": "gpuqueue.settings.settings",
    "task": "gpuqueue.executor.executor",
}

__all__ = [
    "Call",
    "Client",
    "Device",
    "DeviceFilter",
    "Ending",
    "EndingKind",
    "Executor",
    "GpuQueueError",
    "Job",
    "JobRequest",
    "JobSpec",
    "JobState",
    "NoResult",
    "Peak",
    "PeakSource",
    "Priority",
    "Record",
    "Run",
    "Settings",
    "__version__",
    "task",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - deferred until a name is used

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
