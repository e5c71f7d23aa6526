"""Lists and ends the live runs of this machine without a store or a worker."""

from __future__ import annotations

from gpuqueue.errors import GpuQueueError
from gpuqueue.model.run import EndingKind
from gpuqueue.settings.settings import Settings
from workers.run import process_tree
from workers.run.directory import RunDir, unsettled
from workers.run.environment import TOKEN
from workers.shim import launched

#: How long the kernel may need to end processes after SIGKILL, in seconds.
KILL_S = 20.0


def left(settings: Settings) -> dict[int, RunDir]:
    """Return the runs whose shim is alive, by job id."""
    found = {}
    for directory in unsettled(settings.runs_dir):
        held, shim = directory.held(), directory.shim()
        if held is not None and shim is not None and shim.alive():
            found[held.job_id] = directory
    return found


def sweep_run(token: str, launcher: str | None) -> int:
    """Kill every process of the run *token*, and return how many there were.

    With a *launcher* the processes may belong to the submitter, so that only the launcher can find and kill them.

    Raises:
        OSError: Processes may be left: they cannot be read now, or the launcher does not answer.

    """
    swept = process_tree.sweep(TOKEN, token)
    return swept + (launched.sweep(launcher, token) if launcher is not None else 0)


def end(settings: Settings) -> None:
    """End the runs whose shim is alive, and wait until the last of their processes is gone.

    The next worker of each device reports them to the queue as cancelled.

    Raises:
        GpuQueueError: A run does not end.

    """
    runs = left(settings)
    for directory in runs.values():
        directory.ask_end(EndingKind.CANCELLED)
    for job_id, directory in runs.items():
        shim = directory.shim()
        if shim is not None and not shim.wait(settings.kill_grace_s + KILL_S):
            raise GpuQueueError(f"the processes of job {job_id} do not end (shim {shim.pid})")
