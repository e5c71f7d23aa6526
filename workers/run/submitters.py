"""Prepares a host whose jobs run as their submitters (setting ``run_as``)."""

from __future__ import annotations

import os
import stat

from gpuqueue.errors import Refused, unusable
from gpuqueue.settings.settings import Settings
from workers.run.directory import ENTERED


def prepare(settings: Settings) -> None:
    """Let submitters enter the directory of the runs, if jobs run as them. Nobody may list it.

    Raises:
        Refused: A directory above it is closed to them.
        GpuQueueError: The directory cannot be made.

    """
    if settings.launcher_in_use is None:
        return
    try:
        settings.runs_dir.mkdir(parents=True, exist_ok=True)
        settings.runs_dir.chmod(ENTERED)
    except OSError as error:
        raise unusable(settings.runs_dir, error) from error
    for above in settings.runs_dir.parents:
        if not os.stat(above).st_mode & stat.S_IXOTH:  # noqa: PTH116 - follows links
            raise Refused(
                f"run_as is submitter, but submitters cannot enter {above}, which is above their run directories: "
                "set runs_dir to a directory outside of state_dir that everybody may enter"
            )
