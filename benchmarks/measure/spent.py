"""What processes take: memory and processor time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil


def belongs(process: psutil.Process, state_dir: str) -> bool:
    """Return whether a process works for the machine whose state is in *state_dir*."""
    try:
        return process.environ().get("GPUQUEUE_STATE_DIR") == state_dir
    except psutil.Error:
        return False


def workers(state_dir: str) -> list[psutil.Process]:
    """Return the workers of a machine: not its host process, its recorder, its shims or what a worker forked."""
    ours = [each for each in psutil.process_iter() if belongs(each, state_dir)]
    found = [each for each in ours if {"run", "--device"} <= set(_command(each))]
    pids = {each.pid for each in found}
    return [each for each in found if each.ppid() not in pids]


def resident_mib(process: psutil.Process) -> float:
    """Return the resident memory of a process in MiB, what it shares with others included."""
    return float(process.memory_info().rss) / 2**20


def share_of_core(processes: Sequence[psutil.Process], seconds: float) -> float:
    """Watch *processes* for so long; return which share of one core they took, in percent."""
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
