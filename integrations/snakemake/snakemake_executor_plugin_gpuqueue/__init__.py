"""The executor ``gpuqueue`` of Snakemake: each job of a workflow is a job of the queue."""

from snakemake_executor_plugin_gpuqueue.executor import Executor, common_settings

__all__ = ["Executor", "common_settings"]
