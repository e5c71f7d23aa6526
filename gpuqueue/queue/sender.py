"""What the sender of one recorder can. Pure."""

from __future__ import annotations

from gpuqueue.lazy.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Sender:
    """One recorder's sender: the names of its targets, without their addresses, and what begins a URL for it.

    No ``schemes``: Apprise is not installed there, and it sends nothing.
    """

    host: str
    targets: tuple[str, ...]
    schemes: tuple[str, ...]
    #: Whether it takes URLs of jobs.
    urls: bool
