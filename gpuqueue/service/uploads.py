"""Receives the snapshots of code that callers send, and checks which ones they may use."""

from __future__ import annotations

import base64
import binascii
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from gpuqueue.errors import BadRequest, Refused
from gpuqueue.files.blob_store import BlobStore, blob_store_of, limits_of
from gpuqueue.files.limits import DIFF_BYTES
from gpuqueue.files.manifest import read_manifest
from gpuqueue.files.unpack import check_directory
from gpuqueue.model.api import ContentPart, NewSnapshot, SnapshotState
from gpuqueue.model.code_snapshot import CodeSnapshot, DeletedSnapshot
from gpuqueue.model.job_spec import Account
from gpuqueue.service.call import Call
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import format_bytes

#: Threads that store the blobs of one request. Each waits for the disk, which can serve several at once.
THREADS = 8
#: Most parts of blobs in one request, since each is written to the disk by itself. Clients send at most 8 193: a part
#: counts for at least 256 of the 2 MiB of their requests.
MOST_PARTS = 10_000
#: How long the sum of a user's blobs is taken from memory, in seconds. The collection of old blobs makes it smaller.
SUM_S = 60.0


class Uploads:
    """What callers send to one service. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._sums: dict[int, tuple[int, float]] = {}

    def offered(self, call: Call, wanted: NewSnapshot) -> SnapshotState:
        """Store the snapshot if the caller has sent all of its blobs, and return which ones are missing.

        Raises:
            BadRequest: the manifest is not valid, or the snapshot is too large.
            Refused: the snapshots of the caller are too large together.

        """
        uid, store, limits = uid_of(call), blob_store_of(self._settings), limits_of(self._settings)
        text = wanted.manifest.encode(errors="replace")
        manifest = read_manifest(text, limits)
        sizes = manifest.blobs()
        self._count(store, uid, len(text), add=False)
        missing = store.offer(uid, manifest, text, wanted.diff)
        self._count(store, uid, sum(sizes.get(each, 0) for each in missing), add=False)
        return SnapshotState(address=manifest.address(), missing=tuple(missing))

    def received(self, call: Call, parts: tuple[ContentPart, ...]) -> None:
        """Store the blobs that *parts* complete, and keep the other parts until then.

        Raises:
            BadRequest: a part is not what it says, a part before it is missing, or there are more than MOST_PARTS.
            Refused: the snapshots of the caller are too large together.

        """
        if len(parts) > MOST_PARTS:
            raise BadRequest(f"the request has {len(parts)} parts of blobs: send at most {MOST_PARTS} in one request")
        uid, store = uid_of(call), blob_store_of(self._settings)
        most_bytes = max(self._settings.snapshot_file_limit_bytes, DIFF_BYTES)
        by_blob: dict[str, list[tuple[ContentPart, bytes]]] = {}
        for part in parts:
            by_blob.setdefault(part.sha256, []).append((part, _content(part)))
        more_bytes = sum(len(content) for each in by_blob.values() for _, content in each)
        self._count(store, uid, more_bytes, add=True)

        def receive(found: list[tuple[ContentPart, bytes]]) -> None:
            for part, content in found:  # the parts of one blob in their order
                store.put_part(uid, part.sha256, part.size_bytes, part.offset_bytes, content, most_bytes=most_bytes)

        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(receive, by_blob.values()):
                pass

    def deleted(self, call: Call, word: str) -> DeletedSnapshot:
        """Delete the snapshot of the caller whose address begins with *word*.

        Raises:
            Refused: the caller has none, or a job that has not ended needs it.

        """
        done = call.client.snapshots.delete(word)
        with self._lock:
            self._sums.pop(uid_of(call), None)
        return done

    def _count(self, store: BlobStore, uid: int, more_bytes: int, *, add: bool) -> None:
        """Check that the account *uid* may send *more_bytes*, and add them to its sum."""
        limit_bytes = self._settings.snapshot_user_limit_bytes
        with self._lock:
            sum_bytes, at = self._sums.get(uid, (0, 0.0))
        if time.monotonic() > at + SUM_S:
            sum_bytes, at = store.size_bytes_of(uid), time.monotonic()
        if sum_bytes + more_bytes > limit_bytes:
            raise Refused(
                f"your snapshots of code have {format_bytes(sum_bytes)}, and {format_bytes(more_bytes)} more are above "
                f"the limit of {format_bytes(limit_bytes)} (setting snapshot_user_limit): gpuqueue snapshots lists "
                "them, and gpuqueue snapshots delete ADDRESS deletes one"
            )
        with self._lock:
            self._sums[uid] = sum_bytes + (more_bytes if add else 0), at


def check_held(call: Call, snapshot: CodeSnapshot) -> None:
    """Check that the caller has sent *snapshot*, and have it stay until the job is queued.

    Raises:
        BadRequest: the job's directory cannot be in the snapshot.
        Refused: the caller has not sent it, or it was removed since.

    """
    settings = call.connection.settings
    store, limits = blob_store_of(settings), limits_of(settings)
    manifest = store.use(uid_of(call), snapshot.address, limits, diff=snapshot.diff)
    check_directory(snapshot.directory, manifest)


def share(call: Call, snapshot: CodeSnapshot, owner: Account) -> None:
    """Let the caller, who retries a job of *owner*, use its *snapshot*.

    Raises:
        Refused: it was removed since.

    """
    settings = call.connection.settings
    store, limits = blob_store_of(settings), limits_of(settings)
    store.share(owner.uid, uid_of(call), snapshot.address, limits, diff=snapshot.diff)


def uid_of(call: Call) -> int:
    """Return the user id of the caller.

    Raises:
        Refused: the caller has none.

    """
    if call.account.uid < 0:
        raise Refused("your account has no user id, so its code cannot be kept: submit with --no-snapshot")
    return call.account.uid


def _content(part: ContentPart) -> bytes:
    try:
        return base64.b64decode(part.content, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("the content of a part is not base64") from None
