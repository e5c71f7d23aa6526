"""Devices as a table, with lines below it for what is unusual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone

from gpuqueue.cli.output.device_table import device_table
from gpuqueue.cli.output.drains import closed_lines, drain_lines, jobs_on, reserved_lines
from gpuqueue.cli.output.silent_hosts import silent_lines
from gpuqueue.cli.output.terminal_width import hanging, terminal_width
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.settings.settings import Settings
from gpuqueue.text.sanitize import plain, short
from gpuqueue.text.units import format_bytes, format_duration
from gpuqueue.words import values

#: Returns the names of those jobs, ids, that are members of arrays.
Labels = Callable[[Iterable[int]], Mapping[int, str]]


def device_rows(found: Sequence[DeviceStatus], settings: Settings, labels: Labels) -> str:
    """Return the table of devices and the lines below it; *labels* gives the labels of their jobs."""
    called, width = labels(jobs_on(found)), terminal_width()
    table = device_table(found, settings.heartbeat_s, width, called)
    lines = (
        *closed_lines(found, settings.heartbeat_s, table),
        *drain_lines(found),
        *reserved_lines(found, called),
        *silent_lines(found, settings),
        *refusal_lines(found),
        *environment_lines(found),
    )
    return "\n".join((table, *(each for line in lines for each in hanging(line, width))))


def external_process_lines(found: Sequence[DeviceStatus], now: datetime | None = None) -> Iterator[str]:
    """Yield a line for each external process, with its user and its age at *now*, by default the present."""
    now = datetime.now(timezone.utc) if now is None else now
    for each in found:
        for external in each.external_processes:
            who = f"{plain(external.user or 'somebody')}, pid {external.pid}"
            if external.started_at is not None:
                who += f", for {format_duration(max(0.0, (now - external.started_at).total_seconds()))}"
            what = short(external.command or "cannot be seen", 60)
            held = "unknown" if external.held_bytes is None else format_bytes(external.held_bytes)
            if external.freed_bytes:
                held += f" now, {format_bytes(external.counted_bytes)} counted"
            label = values.device_label(each.device)
            yield f"external process on {plain(each.host)} device {label}: {held}  {who}  {what}"


def environment_lines(found: Sequence[DeviceStatus]) -> Iterator[str]:
    """Yield a line for each host that has environments, with their names for ``submit --environment``."""
    for host, names in {each.host: each.environments for each in found}.items():
        if names:
            yield f"environments of {plain(host)}: {', '.join(map(plain, names))}"


def refusal_lines(found: Sequence[DeviceStatus]) -> Iterator[str]:
    """Yield a line for each host that could not start the last jobs that it claimed."""
    hosts = {each.host: each.refusals for each in found if each.refusals is not None and each.refusals.are_many}
    for host, refusals in hosts.items():
        yield f"host {plain(host)} could not start {refusals.jobs} jobs in a row, the last one: {plain(refusals.why)}"
