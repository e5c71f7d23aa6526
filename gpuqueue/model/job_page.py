"""A page of the jobs that have not ended, with the queue's data on their runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import Job
from gpuqueue.model.run import RunDevice


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Jobs, and data on their runs by job id.

    ``at`` is the time of the page on the store's clock. ``held_bytes`` is the memory that the last sample of each run
    showed, summed over its devices. ``logs`` are the paths of the logs on the host of each run. ``devices`` are the
    devices of each run.
    """

    at: datetime
    jobs: tuple[Job, ...]
    held_bytes: Mapping[int, int] = field(default_factory=dict)
    logs: Mapping[int, str] = field(default_factory=dict)
    devices: Mapping[int, tuple[RunDevice, ...]] = field(default_factory=dict)
    #: The last id of this page, for the next one. None if this is the last page.
    after: int | None = None
