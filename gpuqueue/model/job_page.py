"""The jobs that have not ended, with what the queue knows of their runs at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import Job
from gpuqueue.model.run import RunDevice


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Jobs, and by their ids what is known of those that run.

    ``at`` is the moment on the store's clock. ``held_bytes`` is what each run was last seen to hold, on all its devices
    together, ``logs`` where its log lies on its own host, ``devices`` where it runs.
    """

    at: datetime
    jobs: tuple[Job, ...]
    held_bytes: Mapping[int, int] = field(default_factory=dict)
    logs: Mapping[int, str] = field(default_factory=dict)
    devices: Mapping[int, tuple[RunDevice, ...]] = field(default_factory=dict)
    #: The id to go on after, None where there are no more.
    after: int | None = None
