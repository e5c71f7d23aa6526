"""Routes by which the code of a job travels: its manifest first, then the blobs that the service does not have."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from gpuqueue.model.access import Action
from gpuqueue.model.api import ContentParts, NewSnapshot, SnapshotLimits, SnapshotState
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import route
from gpuqueue.service.site import body_of, site_of

router = APIRouter(tags=["snapshots"])


@route(router, "GET", "/snapshots/limits", answer=SnapshotLimits)
async def get_snapshot_limits(request: Request) -> Response:
    """Return how large a snapshot of code may be."""
    settings = site_of(request).settings
    limits = SnapshotLimits(
        total_bytes=settings.snapshot_limit_bytes,
        file_bytes=settings.snapshot_file_limit_bytes,
        files=settings.snapshot_files,
    )

    def work(call: Call) -> SnapshotLimits:
        call.must(Action.SUBMIT)
        return limits

    return await site_of(request).answer(request, work)


@route(router, "POST", "/snapshots", answer=SnapshotState, body=NewSnapshot)
async def offer_snapshot(request: Request) -> Response:
    """Offer a snapshot. Jobs can use it once nothing is missing: send the missing blobs, and offer it again."""
    wanted = await body_of(request, NewSnapshot)

    def work(call: Call) -> SnapshotState:
        call.must(Action.SUBMIT)
        return site_of(request).uploads.offered(call, wanted)

    return await site_of(request).answer(request, work)


@route(router, "POST", "/snapshots/contents", body=ContentParts)
async def send_contents(request: Request) -> Response:
    """Send blobs of a snapshot. Blobs that no job uses are deleted after a time (setting ``keep_snapshots``)."""
    wanted = await body_of(request, ContentParts)

    def work(call: Call) -> None:
        call.must(Action.SUBMIT)
        site_of(request).uploads.received(call, wanted.parts)

    return await site_of(request).answer(request, work)
