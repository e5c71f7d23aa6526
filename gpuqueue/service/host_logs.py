"""Logs of runs on other hosts: whether a relay must be asked for one, and what to say if it does not answer."""

from __future__ import annotations

from pathlib import Path

from gpuqueue.client.run_logs import delivered_log, is_whole, own_log, time_of
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import Job
from gpuqueue.model.run import Run
from gpuqueue.service.relay_requests import HostRun
from gpuqueue.settings.settings import Settings
from gpuqueue.system.delivered_layout import TOKEN


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The log of a run that its host has not delivered whole. It may grow while the run goes on."""

    run: HostRun
    attempt: int
    goes_on: bool


def wanted(settings: Settings, job: Job, run: Run) -> Wanted | None:
    """Return what to ask the host of *run* for, or None if its log is here, or whole."""
    if own_log(settings, run) is not None or not TOKEN.fullmatch(run.token):
        return None
    delivered = delivered_log(settings, run)
    if delivered is not None and is_whole(delivered):
        return None
    goes_on = job.state.is_active and run.attempt == job.attempt and run.ended_at is None
    return Wanted(run=HostRun.of(run), attempt=run.attempt, goes_on=goes_on)


def warning(trouble: str, log: Path) -> str:
    """Return the warning about a *log* of which the newest part may be missing because of *trouble*."""
    return f"{trouble}: this is its log until {time_of(log)}"
