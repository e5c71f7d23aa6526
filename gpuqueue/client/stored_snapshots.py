"""The group ``client.snapshots``: the snapshots of code of an account, and how each differs from its commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpuqueue.client import listing, reads
from gpuqueue.client.connection import Connection
from gpuqueue.errors import Refused
from gpuqueue.files.errors import SnapshotNotHeld
from gpuqueue.files.limits import DIFF_BYTES
from gpuqueue.lazy.imports import later
from gpuqueue.model.code_snapshot import CodeSnapshot, DeletedSnapshot, StoredSnapshot, address_word
from gpuqueue.model.job import Job
from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    from gpuqueue.files import blob_store, collect
else:
    blob_store, collect = later("gpuqueue.files.blob_store"), later("gpuqueue.files.collect")


class Snapshots:
    """The snapshots of this account, in the state directory of this machine."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Sequence[StoredSnapshot]:
        """Return the snapshots of this account, the last used first."""
        store, uid = self._store(), self._connection.account.uid
        found = [] if store is None else collect.listed(store, uid)
        users: dict[str, list[Job]] = {}
        for address, job in self._needed() if found else ():
            users.setdefault(address, []).append(job)
        return tuple(
            StoredSnapshot(
                address=each.address,
                files=each.files,
                size_bytes=each.size_bytes,
                used_at=datetime.fromtimestamp(each.used_at_s, timezone.utc),
                jobs=tuple(job.label for job in users.get(each.address, ())),
            )
            for each in found
        )

    def delete(self, address: str) -> DeletedSnapshot:
        """Delete a snapshot of this account. *address* may be cut to the digits that no other one begins with.

        Raises:
            BadRequest: *address* has other characters, or fewer than six.
            Refused: there is no such snapshot, or a job of this account that has not ended needs it, or a
                repeating one.

        """
        word = address_word(address)
        store, uid = self._store(), self._connection.account.uid
        if store is None:
            raise SnapshotNotHeld("no snapshots are stored on this machine")
        whole = collect.resolve(store, uid, word)
        needed = [(other, job.label) for other, job in self._needed()]
        jobs = [label for other, label in needed if other == whole]
        if jobs:
            more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
            raise Refused(f"job {jobs[0]}{more} needs the snapshot {whole[:12]}: wait for its end, or cancel it first")
        for owner, name, text in self._connection.database.repeating_snapshots():
            if owner.uid != uid:
                continue
            other = CodeSnapshot.parse(text).address
            if other == whole:
                raise Refused(
                    f"the repeating job {plain(name)} needs the snapshot {whole[:12]}: gpuqueue cron remove it first"
                )
            needed.append((other, name))
        freed_bytes = collect.delete(store, uid, whole, {other for other, _ in needed})
        return DeletedSnapshot(address=whole, freed_bytes=freed_bytes)

    def diff(self, job: int | str) -> bytes:
        """Return how the code of a job differs from the commit that it was taken from: a list, and a unified diff.

        Raises:
            JobNotFound: the job does not exist.
            Refused: the job has no copy of its code, it was taken without git, or it was deleted.

        """
        found = reads.get(self._connection, job)
        if found.spec.snapshot is None:
            raise Refused(f"job {found.label} has no copy of its code: it runs in its directory as that is")
        diff = CodeSnapshot.parse(found.spec.snapshot).diff
        if diff is None:
            raise Refused(
                f"the code of job {found.label} was taken without git, or before the first commit, so there is no "
                "commit to compare it with"
            )
        store = self._store()
        try:
            if store is not None:
                with store.open(diff) as file:
                    return file.read(DIFF_BYTES)
        except SnapshotNotHeld:
            pass
        raise SnapshotNotHeld(f"the snapshot of job {found.label} is not on this machine, or was deleted")

    def _store(self) -> blob_store.BlobStore | None:
        """Return the blob store, or None if this machine has none."""
        settings = self._connection.settings
        return blob_store.blob_store_of(settings) if blob_store.directory_of(settings).is_dir() else None

    def _needed(self) -> Iterator[tuple[str, Job]]:
        """Yield the jobs of this account that have a snapshot and have not ended, each with its address."""
        uid = self._connection.account.uid
        after: int | None = 0
        while after is not None:
            page = self._connection.queue.jobs.page(limit=listing.PAGE, after=after)
            for job in page.jobs:
                if job.spec.snapshot is not None and job.spec.account.uid == uid and not job.state.is_end:
                    yield CodeSnapshot.parse(job.spec.snapshot).address, job
            after = page.after
