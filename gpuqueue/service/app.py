"""The application: all routes below ``/api/v1`` and their OpenAPI document, and those for monitoring."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from gpuqueue.service import problems
from gpuqueue.service.metrics.requests import Measured
from gpuqueue.service.routes import (
    access,
    changes,
    csv_files,
    devices,
    files,
    form,
    health,
    history,
    host,
    job_page,
    jobs,
    join,
    logs,
    page,
    sign_in,
    snapshots,
    streams,
    tables,
    terminal,
)
from gpuqueue.service.routes.described import SCHEMAS, known_parameters_only
from gpuqueue.service.site import PREFIX, Site
from gpuqueue.version import VERSION

_ABOUT = """Submit, watch and change jobs of gpuqueue. The caller is the account of the process at the other end of the
unix socket, or that of the access token. Errors are problem documents (RFC 9457)."""


def application(site: Site | None) -> FastAPI:
    """Return the application in front of *site*. Without one it can only return its OpenAPI document."""
    app = FastAPI(title="gpuqueue", version=VERSION, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.site = site
    checked = [Depends(known_parameters_only)]
    api = APIRouter(prefix=PREFIX, dependencies=checked)
    for each in (
        streams,
        jobs,
        job_page,
        changes,
        history,
        csv_files,
        devices,
        logs,
        files,
        terminal,
        snapshots,
        access,
        host,
        join,
        sign_in,
        tables,
        form,
    ):  # /jobs/wait goes before /jobs/{name}
        api.include_router(each.router)
    app.include_router(api)
    app.include_router(page.router)
    app.include_router(health.router)
    if site is not None:
        app.add_middleware(Measured, times=site.metrics.requests, prefix=PREFIX)
    problems.install(app)
    document: dict[str, Any] = {}

    @app.get(f"{PREFIX}/openapi.json", include_in_schema=False, dependencies=checked)
    async def describe() -> dict[str, Any]:
        if not document:
            document.update(openapi_of(app))
        return document

    return app


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of *app*."""
    document = get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(SCHEMAS.named)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}, {}]
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # FastAPI's own form; ours is a problem document
    return document
