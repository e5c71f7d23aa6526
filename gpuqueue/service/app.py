"""The application: all routes below ``/api/v1`` and their OpenAPI document, and those for monitoring."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from gpuqueue.service import forwarding, responses, store_tunnel
from gpuqueue.service.metrics.exposition import Measured
from gpuqueue.service.routes import (
    access,
    changes,
    devices,
    files,
    health,
    history,
    host,
    jobs,
    logs,
    page,
    repeating,
    second_commands,
    snapshots,
    streams,
    terminal,
)
from gpuqueue.service.routes.described import SCHEMAS, ServedOperation, refuse_unknown, route_of
from gpuqueue.service.site import PREFIX, Site
from gpuqueue.version import VERSION

_ABOUT = """Submit, watch and change jobs of gpuqueue. The caller is the account of the process at the other end of the
unix socket, or that of the access token. Errors are problem documents (RFC 9457)."""
_MODULES = (
    streams,  # /jobs/wait goes before /jobs/{name}
    jobs,
    changes,
    repeating,
    history,
    devices,
    logs,
    files,
    terminal,
    second_commands,
    snapshots,
    access,
    host,
    page,
)
#: All operations of the API. The first one that fits a request serves it.
OPERATIONS: tuple[ServedOperation, ...] = tuple(each for module in _MODULES for each in module.router.operations)


def application(site: Site) -> Starlette:
    """Return the application in front of *site*."""
    document: dict[str, Any] = {}

    async def describe(request: Request) -> Response:
        refuse_unknown(request, [])
        if not document:
            document.update(openapi())
        return JSONResponse(document)

    routes: list[BaseRoute] = [each.route(PREFIX) for each in OPERATIONS]
    routes += [
        store_tunnel.route(PREFIX),
        *forwarding.routes(PREFIX),
        *page.ROUTES,
        *health.ROUTES,
        route_of(f"{PREFIX}/openapi.json", describe, "GET"),
    ]
    measured = Middleware(Measured, times=site.metrics.requests)
    app = Starlette(routes=routes, middleware=[measured], exception_handlers=responses.HANDLERS)
    app.state.site = site
    return app


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of the API."""
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        paths.setdefault(PREFIX + each.path, {})[each.method.lower()] = each.described()
    return {
        "openapi": "3.1.0",
        "info": {"title": "gpuqueue", "description": _ABOUT, "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(SCHEMAS.named.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }
