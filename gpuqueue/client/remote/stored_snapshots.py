"""The group ``client.snapshots`` over the service, as :class:`gpuqueue.client.stored_snapshots.Snapshots`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuqueue.client.remote.link import Link, segment
from gpuqueue.model.code_snapshot import DeletedSnapshot, StoredSnapshot, address_word

if TYPE_CHECKING:
    from gpuqueue.client.stored_snapshots import Snapshots as Direct
else:
    Direct = object


class RemoteSnapshots(Direct):
    """The snapshots of the caller at the service."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def list(self) -> Sequence[StoredSnapshot]:
        """Return the snapshots of this account, the last used first."""
        return self._link.get(tuple[StoredSnapshot, ...], "/snapshots")

    def delete(self, address: str) -> DeletedSnapshot:
        """Delete a snapshot of this account."""
        return self._link.send("DELETE", f"/snapshots/{address_word(address)}", kind=DeletedSnapshot)

    def diff(self, job: int | str) -> bytes:
        """Return how the code of a job differs from the commit that it was taken from."""
        return self._link.get(bytes, f"/jobs/{segment(job)}/diff")
