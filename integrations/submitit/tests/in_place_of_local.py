"""A plugin of pytest: submitit's own tests of its local executor use the one of this plug-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuqueue_submitit import GpuQueueExecutor, GpuQueueJob
from submitit.local import local


class InPlaceOfLocal(GpuQueueExecutor):
    """The executor of the plug-in, with the device memory that each of its jobs needs."""

    def __init__(self, folder: str | Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.update_parameters(mem="64M")

    @classmethod
    def name(cls) -> str:
        """Return the name of the executor of the plug-in."""
        return GpuQueueExecutor.name()


local.LocalExecutor, local.LocalJob = InPlaceOfLocal, GpuQueueJob  # type: ignore[misc]
