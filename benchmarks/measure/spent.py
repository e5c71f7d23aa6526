"""Measures memory and CPU time of processes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

#: How memory was measured: the end of the name of its floor. Earlier reports have neither.
PSS, RSS = "by PSS", "by RSS"


def belongs(process: psutil.Process, state_dir: str) -> bool:
    """Return whether a process belongs to the machine whose state is in *state_dir*."""
    try:
        return process.environ().get("GPUQUEUE_STATE_DIR") == state_dir
    except psutil.Error:
        return False


def workers(state_dir: str) -> list[psutil.Process]:
    """Return the workers of a machine, without its host process, recorder, shims and the workers' forks."""
    ours = [each for each in psutil.process_iter() if belongs(each, state_dir)]
    found = [each for each in ours if {"run", "--device"} <= set(_command(each))]
    pids = {each.pid for each in found}
    return [each for each in found if each.ppid() not in pids]


def with_children(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and its descendants: an idle worker has its fork server."""
    return [process, *process.children(recursive=True)]


def can_share(processes: Sequence[psutil.Process]) -> bool:
    """Return whether the PSS of each of *processes* can be read, which counts shared pages in part.

    Only Linux reports it, and only for processes that we may inspect.
    """
    try:
        return all(each.memory_full_info().pss > 0 for each in processes)
    except (AttributeError, psutil.AccessDenied):
        return False


def memory_mib(processes: Sequence[psutil.Process], *, shared: bool) -> float:
    """Return the memory of *processes* in MiB: their PSS, which counts a shared page once over all of them.

    Without *shared* it is their RSS, which counts a shared page for each.
    """
    found = [each.memory_full_info().pss if shared else each.memory_info().rss for each in processes]
    return float(sum(found)) / 2**20


def share_of_core(processes: Sequence[psutil.Process], seconds: float) -> float:
    """Observe *processes* for this many seconds; return their share of one core, in percent."""
    before = _spent_s(processes)
    time.sleep(seconds)
    return 100 * (_spent_s(processes) - before) / seconds


def _spent_s(processes: Sequence[psutil.Process]) -> float:
    times = [each.cpu_times() for each in processes]
    return float(sum(each.user + each.system for each in times))


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
