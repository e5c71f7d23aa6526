"""The options of the launcher: those of ``gpuqueue submit`` that make sense for a function, by the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.core.config_store import ConfigStore

from gpuqueue.executor.executor import defaults

#: Options that the command line calls otherwise than Python does.
CALLED = {"time_limit": "time", "tags": "tag"}
#: Options that Hydra decides: the directory of a job is hydra.job.chdir, and its output that of hydra.sweep.
_HYDRAS = frozenset({"cwd", "anyway"})

ConfigStore.instance().store(
    group="hydra/launcher",
    name="gpuqueue",
    node={
        "_target_": f"{__package__}.gpuqueue_launcher.GpuQueueLauncher",
        **{
            CALLED.get(name, name): default or None if isinstance(default, (str, tuple)) else default
            for name, default in defaults().items()
            if name not in _HYDRAS
        },
    },
    provider="gpuqueue",
)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the *options* that have a value, by their names in Python."""
    names = {called: name for name, called in CALLED.items()}
    return {names.get(name, name): value for name, value in options.items() if value is not None}
