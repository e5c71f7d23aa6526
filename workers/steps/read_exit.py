"""The seventh step: reads the exit of a run whose shim is gone, and ends what is left of a run without an exit."""

from __future__ import annotations

from gpuqueue.errors import Unreadable
from gpuqueue.model.run import Ending
from workers.measure.active_runs import LiveRun
from workers.run.orphans import sweep_run
from workers.run.values import Exit


def read_exit(run: LiveRun, launcher: str | None) -> Exit:
    """Return the exit of *run*. Without a readable exit the run is lost, and its processes are killed.

    *launcher* is the launcher's socket if jobs run as their submitters.

    Raises:
        OSError: The exit cannot be read now, or the launcher does not answer, so processes may be left.

    """
    vanished = False
    try:
        found = run.directory.exit()
        if found is not None:
            return found
        vanished = run.directory.path.is_dir()
        words = "its shim vanished" if vanished else "its run directory was deleted"
    except Unreadable as error:
        words = str(error)
    swept = sweep_run(run.held.token, launcher)
    words += f", {swept} processes of it were ended" if swept else ""
    return Exit(ending=Ending.lost(words), duration_s=None, max_rss_bytes=None, shim_vanished=vanished)
