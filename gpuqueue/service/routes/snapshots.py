"""Routes by which the code of a job travels: its manifest first, then the blobs that the service does not have.

And the routes of the group ``client.snapshots``, about the code that has arrived.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.model.access import Action
from gpuqueue.model.api import ContentParts, NewSnapshot, SnapshotLimits, SnapshotState
from gpuqueue.model.code_snapshot import DeletedSnapshot, StoredSnapshot
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import OCTETS, Operations, operation
from gpuqueue.service.site import site_of

router = Operations("snapshots")


@operation(router, "GET /snapshots/limits", may=Action.SUBMIT)
def get_snapshot_limits(call: Call) -> SnapshotLimits:
    """Return how large a snapshot of code may be."""
    settings = call.connection.settings
    return SnapshotLimits(
        total_bytes=settings.snapshot_limit_bytes,
        file_bytes=settings.snapshot_file_limit_bytes,
        files=settings.snapshot_files,
    )


@operation(router, "POST /snapshots", may=Action.SUBMIT)
def offer_snapshot(call: Call, request: Request, body: NewSnapshot) -> SnapshotState:
    """Offer a snapshot. Jobs can use it once nothing is missing: send the missing blobs, and offer it again."""
    call.must_run()
    return site_of(request).uploads.offered(call, body)


@operation(router, "POST /snapshots/contents", may=Action.SUBMIT)
def send_contents(call: Call, request: Request, body: ContentParts) -> None:
    """Send blobs of a snapshot. Blobs that no job uses are deleted after a time (setting ``keep_snapshots``)."""
    call.must_run()
    site_of(request).uploads.received(call, body.parts)


@operation(router, "snapshots.list")
def list_snapshots(call: Call) -> tuple[StoredSnapshot, ...]:
    """List the snapshots of the caller, the last used first, and the jobs that need them."""
    call.must(Action.SEE_ARGUMENTS, call.account)
    return tuple(call.client.snapshots.list())


@operation(router, "snapshots.delete")
def delete_snapshot(call: Call, request: Request, address: str) -> DeletedSnapshot:
    """Delete a snapshot of the caller that no job needs. The first digits of its address are enough."""
    with call.change(Action.SUBMIT, "snapshot-delete", detail={"snapshot": address}):
        return site_of(request).uploads.deleted(call, address)


@operation(router, "snapshots.diff", answer=bytes, media_type=OCTETS)
def job_diff(call: Call, name: str) -> Response:
    """Return how the code of a job differs from the commit that it was taken from: a list, and a unified diff."""
    call.must(Action.SEE_ARGUMENTS, call.owner_of(name))
    return Response(call.client.snapshots.diff(name), media_type=OCTETS)
