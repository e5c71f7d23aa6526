"""What a user can change in the request of a waiting job, in the forms that users type. Pure.

A test holds the fields to those of :class:`gpuqueue.model.job_request.JobRequest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass

if TYPE_CHECKING:
    from datetime import datetime

    from gpuqueue.model.dependencies import Dependency
    from gpuqueue.model.device import DeviceFilter
    from gpuqueue.model.job_spec import EarlySignal, Priority
    from gpuqueue.model.placement import Preference
    from gpuqueue.model.retries import RetryOn


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEdit:
    """Changes to a waiting job. None leaves a field unchanged. The fields have the forms of JobRequest.

    ``"none"`` removes a time limit, a signal, a preference, device types, dependencies, the limits *cpus* and
    *cpu_mem* or the concurrency limit of an array (*at_once*), ``"now"`` an earliest start, ``"any"`` named devices, an
    empty *pool* the pool. A job without a time limit gets the limit of its new pool. A *mem* of ``"auto"`` is what
    earlier runs of the job's script needed. After an array has started, only *at_once* can be changed.
    """

    mem: str | int | None = None
    gpus: int | None = None
    device: DeviceFilter | str | Sequence[str] | None = None
    device_type: str | Sequence[str] | None = None
    exclusive: bool | None = None
    preference: Preference | str | None = None
    time_limit: str | float | None = None
    signal: EarlySignal | str | None = None
    name: str | None = None
    priority: Priority | str | None = None
    pool: str | None = None
    after: str | int | Dependency | Sequence[str | int | Dependency] | None = None
    begin: str | datetime | None = None
    retries: int | None = None
    retry_on: str | Sequence[RetryOn] | None = None
    mem_retries: int | None = None
    at_once: int | str | None = None
    cpus: str | float | None = None
    cpu_mem: str | int | None = None

    def __bool__(self) -> bool:
        """Return whether any field changes."""
        return any(getattr(self, name) is not None for name in self.__slots__)
