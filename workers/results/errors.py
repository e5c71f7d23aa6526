"""The errors of packing. Each message is one line. Standard library only."""

from __future__ import annotations

from gpuqueue.errors import GpuQueueError


class PackFailed(GpuQueueError):
    """The archive is not complete."""


class NoCopy(PackFailed):
    """There is nothing to pack: the run has no copy of the code, or it was deleted."""

    exit_code = 3
