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
from gpuqueue.service.routes.described import Operations, operation, route
from gpuqueue.service.site import body_of, site_of

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


@route(router, "POST /snapshots", answer=SnapshotState, body=NewSnapshot)
async def offer_snapshot(request: Request) -> Response:
    """Offer a snapshot. Jobs can use it once nothing is missing: send the missing blobs, and offer it again."""
    wanted = await body_of(request, NewSnapshot)

    def work(call: Call) -> SnapshotState:
        call.must(Action.SUBMIT)
        return site_of(request).uploads.offered(call, wanted)

    return await site_of(request).answer(request, work)


@route(router, "POST /snapshots/contents", body=ContentParts)
async def send_contents(request: Request) -> Response:
    """Send blobs of a snapshot. Blobs that no job uses are deleted after a time (setting ``keep_snapshots``)."""
    wanted = await body_of(request, ContentParts)

    def work(call: Call) -> None:
        call.must(Action.SUBMIT)
        site_of(request).uploads.received(call, wanted.parts)

    return await site_of(request).answer(request, work)


@operation(router, "snapshots.list")
def list_snapshots(call: Call) -> tuple[StoredSnapshot, ...]:
    """List the snapshots of the caller, the last used first, and the jobs that need them."""
    call.must(Action.SEE_ARGUMENTS, call.account)
    return tuple(call.client.snapshots.list())


@route(router, "snapshots.delete", answer=DeletedSnapshot)
async def delete_snapshot(request: Request, address: str) -> Response:
    """Delete a snapshot of the caller that no job needs. The first digits of its address are enough."""

    def work(call: Call) -> DeletedSnapshot:
        with call.change(Action.SUBMIT, "snapshot-delete", detail={"snapshot": address}):
            return site_of(request).uploads.deleted(call, address)

    return await site_of(request).answer(request, work)


@route(router, "snapshots.diff", answer=bytes, media_type="application/octet-stream")
async def job_diff(request: Request, name: str) -> Response:
    """Return how the code of a job differs from the commit that it was taken from: a list, and a unified diff."""

    def work(call: Call) -> Response:
        call.must(Action.SEE_ARGUMENTS, call.owner_of(name))
        return Response(call.client.snapshots.diff(name), media_type="application/octet-stream")

    return await site_of(request).answer(request, work)
