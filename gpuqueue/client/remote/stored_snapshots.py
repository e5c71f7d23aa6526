"""The group ``client.snapshots`` over the service."""

from __future__ import annotations

from gpuqueue.client.remote.link import Link
from gpuqueue.client.remote.operations import asking
from gpuqueue.client.stored_snapshots import Snapshots


@asking("snapshots")
class RemoteSnapshots(Snapshots):
    """The snapshots of the caller at the service."""

    def __init__(self, link: Link) -> None:
        self._link = link
