"""The class that Hydra finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class GpuQueueLauncher(Launcher):
    """Runs each batch of a sweep as one array. *options* are those of ``config.py``."""

    def __init__(self, **options: Any) -> None:
        self._options = {
            name: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for name, value in options.items()
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Remember the app."""
        self._context, self._function, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run a batch, and return what became of each job, in the order of *job_overrides*.

        A job that failed, was cancelled or was lost has the status FAILED, and its ``return_value`` raises the error.

        Raises:
            CompactHydraException: an option is malformed, the queue refuses the array, or it cannot be reached.
            SystemExit: Ctrl-C; with 130 if the array was cancelled, with 7 if it goes on.

        """
        from . import _launch  # noqa: PLC0415 - Hydra imports this module at each start of each app

        app = _launch.App(self._context, self._function, self._config)
        return _launch.launch(app, self._options, job_overrides, initial_job_idx)
