"""The sixth step: waits until the shim of a run is gone."""

from __future__ import annotations

from workers.measure.active_runs import LiveRun
from workers.shim.client import Shim
from workers.shim.supervisor import CANNOT_WRITE
from workers.steps.conclusion import NotStarted
from workers.steps.detach import pause, wait_for
from workers.threads.steady_clock import SteadyEvent

#: Pause between two polls for a shim that is just being started, in seconds.
POLL_S = 0.05


def follow_child(run: LiveRun, shim: Shim, stopping: SteadyEvent) -> None:
    """Wait until the shim that this worker started is gone.

    Raises:
        NotStarted: The shim did not begin the run.
        Detached: The worker stops before.

    """
    try:
        wait_for(shim.handle, stopping)
        code = shim.code()
    finally:
        shim.close()
    if code != 0 and run.directory.held() is not None and run.directory.shim() is None:
        # A shim writes its identity before it starts anything, so this one started nothing.
        why = f"its shim ended at once with {'a signal' if code is None else code}"
        raise NotStarted("its run directory cannot be written" if code == CANNOT_WRITE else why, host_failed=True)


def follow(run: LiveRun, stopping: SteadyEvent) -> None:
    """Wait until the shim of *run*, found by the files of the run directory, is gone.

    Raises:
        Detached: The worker stops before.

    """
    while (shim := run.directory.shim()) is None:
        if not run.directory.path.is_dir():
            return  # the run directory was deleted; the shim ends when it notices
        if run.lock_fd is None:
            run.lock_fd = run.directory.try_lock()
        if run.lock_fd is not None:
            return  # the lock is free, so no shim was started
        pause(stopping, POLL_S)
    handle = shim.handle()
    if handle is not None:
        wait_for(handle, stopping)
