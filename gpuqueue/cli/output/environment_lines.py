"""The Python environments that hosts have. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.text.sanitize import plain


def environment_lines(found: Sequence[DeviceStatus]) -> Iterator[str]:
    """Yield a line for each host that has environments, with their names for ``submit --environment``."""
    for host, names in {each.host: each.environments for each in found}.items():
        if names:
            yield f"environments of {plain(host)}: {', '.join(map(plain, names))}"
