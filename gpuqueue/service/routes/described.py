"""What the OpenAPI document says about a route: the types of its body and of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.dependencies.models import Dependant

from gpuqueue.errors import BadRequest
from gpuqueue.model.api import Problem
from gpuqueue.service.problems import MEDIA_TYPE
from gpuqueue.service.schema import Schemas
from gpuqueue.text.sanitize import brief

#: The schemas of all types that the routes name.
SCHEMAS = Schemas()
_PROBLEM = {"description": "The error.", "content": {MEDIA_TYPE: {"schema": SCHEMAS.of(Problem)}}}
OCTETS = "application/octet-stream"
#: The parameter of a route that the page lets a browser download. ``site.credentials_of`` uses it.
Download = Annotated[
    str | None,
    Query(alias="download", description="A code of ``POST /web/downloads``, which stands for the session of the page."),
]
_OCTETS = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}


async def known_parameters_only(request: Request) -> None:
    """Check that the route of *request* knows each parameter of its query. A mistyped filter would find all jobs.

    Raises:
        BadRequest: a parameter is unknown.

    """
    if not request.query_params:
        return
    known = _parameters(request.scope["route"].dependant)
    unknown = [each for each in request.query_params if each not in known]
    if unknown:
        there = f"there are {', '.join(known)}" if known else "there are none here"
        raise BadRequest(f"there is no parameter {brief(unknown[0])}: {there}")


def _parameters(dependant: Dependant) -> list[str]:
    """Return the names of the query parameters of *dependant* and of all that it depends on."""
    own = [each.alias for each in dependant.query_params]
    return own + [name for each in dependant.dependencies for name in _parameters(each)]


def route(
    router: APIRouter,
    method: str,
    path: str,
    *,
    answer: Any = None,
    body: Any = None,
    status: int = 200,
    media_type: str = "application/json",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that serves a function at *path*. *answer* and *body* are types; None means nothing.

    The bytes of a body may be none.
    """
    done: dict[str, Any] = {"description": "Done."}
    if answer is not None:
        schema = {"type": "string"} if answer is bytes else SCHEMAS.of(answer)
        done = {"description": "The answer.", "content": {media_type: {"schema": schema}}}
    code = status if answer is not None or status != 200 else 204  # noqa: PLR2004 - OK, and no content
    extra: dict[str, Any] = {}
    if body is not None:
        content = {"application/json": {"schema": SCHEMAS.of(body)}} if body is not bytes else _OCTETS
        extra["requestBody"] = {"required": body is not bytes, "content": content}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        router.add_api_route(
            path,
            function,
            methods=[method],
            status_code=code,
            responses={code: done, "default": _PROBLEM},
            openapi_extra=extra,
            operation_id=function.__name__,
            response_model=None,
        )
        return function

    return decorate
