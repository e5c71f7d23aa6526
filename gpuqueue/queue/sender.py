"""The capabilities of one recorder's sender. Pure."""

from __future__ import annotations

from gpuqueue.lazy.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Sender:
    """One recorder's sender: the names of its targets, without their addresses, and the URL schemes it supports.

    Without ``schemes`` Apprise is not installed there, and the sender sends nothing.
    """

    host: str
    targets: tuple[str, ...]
    schemes: tuple[str, ...]
    #: Whether it accepts the URLs of jobs.
    urls: bool
