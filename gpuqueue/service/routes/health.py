"""Routes for machines beside the API: the metrics for Prometheus, and whether the service lives and can serve."""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.model.access import Action, require
from gpuqueue.service.routes.described import route_of
from gpuqueue.service.site import credentials_of, site_of

#: How long a scraper's token is accepted after the history went away, in seconds. It permits nothing but the metrics,
#: which are needed most then.
STALE_TOKEN_S = 86400.0


async def metrics(request: Request) -> Response:
    """Return the metrics of the site, for callers with the right ``see-metrics``."""
    site = site_of(request)
    credentials = credentials_of(request)
    caller = await site.metrics.in_thread(lambda: site.identity.caller(credentials, stale_s=STALE_TOKEN_S))
    require(caller, Action.SEE_METRICS, None, site.policy)
    content, media_type = await site.metrics.text(request.headers.get("accept", ""))
    return Response(content, media_type=media_type, headers={"Cache-Control": "no-store"})


async def lives(_: Request) -> Response:
    """Answer: the process lives. Reads nothing."""
    return _state(200, status="ok")


async def can_serve(request: Request) -> Response:
    """Say whether the store answers, and what is away. While only the history is away, the queue goes on."""
    away = await site_of(request).metrics.away()
    return _state(503 if "store" in away else 200, status="away" if "store" in away else "ok", away=away)


def _state(status_code: int, **words: object) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(json.dumps(words).encode("ascii"), status_code, headers, "application/json")


ROUTES = (
    route_of("/metrics", metrics, "GET"),
    route_of("/healthz", lives, "GET"),
    route_of("/readyz", can_serve, "GET"),
)
