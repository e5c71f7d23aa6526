"""Runs that follow a lack of device memory: what the worker reports about it, and the request that follows. Pure.

The store decides (``memory_retry.lua``): it knows the devices, the limits and the count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.mem_source import MemKind

if TYPE_CHECKING:
    from gpuqueue.model.job_spec import JobSpec

#: How the notes about a lack of device memory begin.
OUT_OF_MEMORY = "out of memory"
#: What a note says where a job cannot ask for more.
NO_LARGER_DEVICE = "no device that the job may use gives more"
LIMITED = "a limit of the site lets it ask for no more"
#: What a note says where the job was not short of its own request.
TAKEN_BY_OTHERS = "because others took its memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortage:
    """The facts about a run that died for lack of device memory, on the device that was full.

    ``peak_bytes`` is the most that the run used there. ``tried_bytes`` is the size of the allocation that failed. Each
    is None if it is unknown. ``blamed`` names the others who had taken memory of the run, None if nobody had.
    """

    peak_bytes: int | None = None
    tried_bytes: int | None = None
    blamed: str | None = None


def with_granted(spec: JobSpec, mem_bytes: int) -> JobSpec:
    """Return *spec* with the memory that the queue gave the job after a lack of it; unchanged if that is the same."""
    if mem_bytes == spec.mem_bytes:
        return spec
    return replace(spec, mem_bytes=mem_bytes, mem_source=str(MemKind.OUT_OF_MEMORY))
