"""Hosts without heartbeats, and until when their jobs are kept for them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone

from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.lease import SILENT_HEARTBEATS, DeviceStatus
from gpuqueue.settings.settings import Settings
from gpuqueue.text.sanitize import plain
from gpuqueue.words.values import short_time


def kept_until(each: DeviceStatus, settings: Settings) -> datetime | None:
    """Return until when the jobs of a silent device are kept for its host. None: it is not silent, or has no jobs.

    None also after ``gpuqueue down --leave-jobs``, which keeps them for longer.
    """
    is_silent = each.seen_s_ago > SILENT_HEARTBEATS * settings.heartbeat_s
    if not is_silent or not each.jobs or any(drain.origin is DrainOrigin.DOWN for drain in each.drains):
        return None
    return datetime.now(timezone.utc) + timedelta(seconds=settings.host_lost_after_s - each.seen_s_ago)


def silent_lines(found: Sequence[DeviceStatus], settings: Settings, job_id: int | None = None) -> Iterator[str]:
    """Yield a line for each silent host with jobs; with *job_id* only for the hosts that run this job."""
    shown = set()
    for each in found:
        until = kept_until(each, settings)
        if until is None or each.host in shown or job_id not in {None, *each.jobs}:
            continue
        shown.add(each.host)
        minutes = each.seen_s_ago / 60
        silence = f"{minutes:.0f} min" if minutes >= 1 else f"{each.seen_s_ago:.0f} s"
        # The time is a setting of the site, which the settings of a client of the service do not have.
        end = f"until {short_time(until)}" if settings.client_url is None else "for the host_lost_after of the site"
        yield f"host {plain(each.host)} has been silent for {silence}: its jobs are kept {end}"
