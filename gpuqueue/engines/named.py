"""The engines by name. Each is loaded once it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from gpuqueue.engines.engine import Engine
from gpuqueue.lazy.imports import later

if TYPE_CHECKING:
    from gpuqueue.engines import kubernetes, slurm
    from gpuqueue.model.burst import PilotSettings
else:
    kubernetes, slurm = (later(f"gpuqueue.engines.{name}") for name in ("kubernetes", "slurm"))


class EngineFile(Protocol):
    """What the file of an engine has, besides the engine.

    ``PROGRAM`` is the ``gpuqueue`` of a pilot if the settings name none. Empty: that of this machine.
    """

    PROGRAM: str

    def engine_of(self, settings: PilotSettings, /) -> Engine:
        """Return the engine of these settings."""

    def left_here_s(self, environ: Mapping[str, str], /) -> float | None:
        """Return the seconds until the end of the allocation in which this process runs, None if they are not known."""


#: The names are those of ``gpuqueue.model.burst.ENGINES``.
ENGINE_FILES: Mapping[str, EngineFile] = {"slurm": slurm, "kubernetes": kubernetes}
