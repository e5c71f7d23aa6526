"""Judges whether the host process or the recorder does its work, from what the store shows of it."""

from __future__ import annotations

from gpuqueue.model.event import BEHIND_S
from gpuqueue.queue.diagnostics import queue_facts
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import SILENT_HEARTBEATS
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import format_duration


def trouble_of(part: str, queue: JobQueue, settings: Settings) -> str:
    """Return what is wrong with the *part* ``host`` or ``recorder``, empty if nothing is.

    Raises:
        StoreUnreachable: the store does not answer.

    """
    silent_s = SILENT_HEARTBEATS * settings.heartbeat_s
    return _of_host(queue, settings.host, silent_s) if part == "host" else _of_recorder(queue, settings, silent_s)


def _of_host(queue: JobQueue, host: str, silent_s: float) -> str:
    devices = queue.devices.all(host)
    silent = [each for each in devices if each.seen_s_ago > silent_s]
    if not devices:
        return f"host {host} serves no device: see the logs of its workers"
    if silent:
        ago = format_duration(max(each.seen_s_ago for each in silent))
        return f"{len(silent)} of {len(devices)} devices of host {host} are silent for up to {ago}: see their logs"
    return ""


def _of_recorder(queue: JobQueue, settings: Settings, silent_s: float) -> str:
    """Judge the recorder by the oldest event that waits for it, and by the reaper in its process."""
    _, waits_s = queue.outbox.backlog()
    if waits_s is not None and waits_s > BEHIND_S:
        return f"the history is {format_duration(waits_s)} behind: does the database answer?"
    facts = queue_facts(settings.redis_url, None)
    if facts.reaped_ms is None:
        return "no reaper has run: the recorder has not started"
    ago_s = facts.ago_s(facts.reaped_ms)
    return f"the recorder's process is silent for {format_duration(ago_s)}" if ago_s > silent_s else ""
