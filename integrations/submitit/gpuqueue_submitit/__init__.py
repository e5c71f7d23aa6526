"""A plug-in of submitit that runs functions as jobs of a gpuqueue. submitit finds it by its entry points.

    >>> executor = submitit.AutoExecutor("log_test", cluster="gpuqueue")
    >>> executor.update_parameters(timeout_min=60, gpuqueue_mem="6G")
    >>> job = executor.submit(add, 5, 7)

docs/howto/submitit.md has the parameters.
"""

from __future__ import annotations

from gpuqueue_submitit.environment import GpuQueueJobEnvironment
from gpuqueue_submitit.executor import GpuQueueExecutor
from gpuqueue_submitit.job import GpuQueueInfoWatcher, GpuQueueJob

__all__ = ["GpuQueueExecutor", "GpuQueueInfoWatcher", "GpuQueueJob", "GpuQueueJobEnvironment"]
