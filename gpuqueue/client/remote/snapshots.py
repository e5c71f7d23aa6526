"""Sends the code of a job to the service: only the blobs that the service does not have."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuqueue.client.remote import far_python
from gpuqueue.client.snapshots import Note, noted, taken
from gpuqueue.errors import GpuQueueError, Refused
from gpuqueue.model.api import ContentPart, ContentParts, NewSnapshot, SnapshotLimits, SnapshotState
from gpuqueue.snapshot.limits import IGNORE_FILE, Limits

if TYPE_CHECKING:
    from gpuqueue.client.remote.link import Link
    from gpuqueue.model.job_request import JobRequest
    from gpuqueue.model.job_spec import JobSpec
    from gpuqueue.snapshot.take import Snapshot

#: Most bytes of blobs in one request. A request has at most 4 MiB, and base64 takes a third more.
BATCH_BYTES = 2 * 2**20
#: Longest manifest, in bytes: the service takes 4 MiB in one request, and JSON needs more for the same text.
MOST_MANIFEST_BYTES = 7 * 2**19
#: How often the service is asked which blobs are missing. Between two answers it may collect old blobs.
TRIES = 3


def sent(link: Link, request: JobRequest, spec: JobSpec, note: Note | None, *, is_far: bool) -> JobSpec:
    """Return *spec* with a snapshot of its code, which the service has then. If *is_far*, its Python is of the hosts.

    Raises:
        BadRequest: a directory does not exist, or the request names a Python of this machine.
        Refused: the snapshot is too large, or a file in it must not travel.

    """
    found: SnapshotLimits = link.get(SnapshotLimits, "/snapshots/limits")
    limits = Limits(total_bytes=found.total_bytes, file_bytes=found.file_bytes, files=found.files)
    snapshot = taken(request, spec, limits)
    if not is_far:
        return noted(request, spec, snapshot, _send(link, snapshot), note)
    spec = far_python.chosen(request, spec, snapshot)
    spec = noted(request, spec, snapshot, _send(link, snapshot), note)
    line = far_python.in_words(spec)
    if note is not None and line is not None:
        note(line)
    return spec


def _send(link: Link, snapshot: Snapshot) -> int:
    """Send *snapshot*, and return how many bytes of blobs the service did not have."""
    if len(snapshot.text) > MOST_MANIFEST_BYTES:
        raise Refused(
            f"the names of the {len(snapshot.manifest.entries)} files are too long together: leave out files that the "
            f"job does not need by lines in {IGNORE_FILE}"
        )
    sent_bytes = 0
    body = NewSnapshot(manifest=snapshot.text.decode(), diff=snapshot.diff_sha256)
    for _ in range(TRIES):
        state: SnapshotState = link.send("POST", "/snapshots", body, kind=SnapshotState)
        if not state.missing:
            return sent_bytes
        for batch in _batches(snapshot, state.missing):
            link.send("POST", "/snapshots/contents", ContentParts(parts=batch))
        blobs = snapshot.blobs()
        sent_bytes += sum(blobs.get(each, 0) for each in state.missing)
    raise GpuQueueError("the service does not keep the files that were sent: see its log")


def _batches(snapshot: Snapshot, missing: Sequence[str]) -> Iterator[tuple[ContentPart, ...]]:
    batch: list[ContentPart] = []
    left_bytes = BATCH_BYTES
    sizes = snapshot.sends()
    for sha256 in missing:
        for part, size_bytes in _parts(snapshot, sha256, sizes[sha256]):
            if batch and size_bytes > left_bytes:
                yield tuple(batch)
                batch, left_bytes = [], BATCH_BYTES
            batch.append(part)
            left_bytes -= size_bytes + 256  # the rest of a part's JSON
    if batch:
        yield tuple(batch)


def _parts(snapshot: Snapshot, sha256: str, size_bytes: int) -> Iterator[tuple[ContentPart, int]]:
    """Yield the parts of a blob of *size_bytes*, each with its own size in bytes. An empty blob has one part."""
    offset_bytes = 0
    whole = ContentPart(sha256=sha256, size_bytes=size_bytes, content="")
    for chunk in snapshot.blob(sha256):
        content = base64.b64encode(chunk).decode("ascii")
        yield replace(whole, content=content, offset_bytes=offset_bytes), len(chunk)
        offset_bytes += len(chunk)
    if not offset_bytes:
        yield whole, 0
