"""Where the log of a run is on this machine: in the run's own directory, or as another host has delivered it.

:mod:`gpuqueue.system.delivered_layout` describes the directory of the deliveries.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.lazy.imports import later
from gpuqueue.system.delivered_layout import COMPLETE, TOKEN
from gpuqueue.system.logs import LOG, is_log_of

if TYPE_CHECKING:
    from gpuqueue.codec import figures_file
    from gpuqueue.model.run import Run
    from gpuqueue.model.run_figures import RunFigures
    from gpuqueue.settings.settings import Settings
else:
    figures_file = later("gpuqueue.codec.figures_file")


def own_log(settings: Settings, run: Run) -> Path | None:
    """Return the path of the log of *run* if the run's own directory is on this machine, else None.

    Another host may share the directory of the runs, as containers do. The path has the token of the run, so no other
    machine has another file there. The path comes from the store, which every worker host can write to: a path that no
    worker makes is not opened, since the service may read more than the caller.
    """
    path = Path(run.log_path or "")
    if not is_log_of(path, run.job_id, run.token):
        return None
    if run.host == settings.own_host:
        return path
    return path if settings.runs_dir in path.parents and _exists(path) else None


def figures_of(settings: Settings, run: Run) -> RunFigures | None:
    """Return what *run* has used and reported so far, if its directory is on this machine; None if that is unknown."""
    log = own_log(settings, run)
    return None if log is None else figures_file.read(log.parent)


def delivered_log(settings: Settings, run: Run) -> Path | None:
    """Return the path of the log of *run* as its host has delivered it to the service of this machine, or None."""
    if not TOKEN.fullmatch(run.token):
        return None
    path = settings.delivered_dir / str(run.job_id) / run.token / LOG
    return path if _exists(path) else None


def is_whole(delivered: Path) -> bool:
    """Return whether a *delivered* log is whole: its run has ended, and nothing will be added."""
    return _exists(delivered.with_name(COMPLETE))


def time_of(delivered: Path) -> str:
    """Return in words when a *delivered* log was last written."""
    try:
        written_s = delivered.stat().st_mtime
    except OSError:  # it was deleted meanwhile
        return "an unknown time"
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(written_s))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # it is another account's
        return False
