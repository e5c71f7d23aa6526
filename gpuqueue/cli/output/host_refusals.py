"""Hosts that could not start several jobs in a row. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.text.sanitize import plain


def refusal_lines(found: Sequence[DeviceStatus]) -> Iterator[str]:
    """Yield a line for each host that could not start the last jobs that it claimed."""
    hosts = {each.host: each.refusals for each in found if each.refusals is not None and each.refusals.are_many}
    for host, refusals in hosts.items():
        yield f"host {plain(host)} could not start {refusals.jobs} jobs in a row, the last one: {plain(refusals.why)}"
