"""What the OpenAPI document says about a route: the types of its body and of its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from gpuqueue.model.api import Problem
from gpuqueue.service.problems import MEDIA_TYPE
from gpuqueue.service.schema import Schemas

#: The schemas of all types that the routes name.
SCHEMAS = Schemas()
_PROBLEM = {"description": "The error.", "content": {MEDIA_TYPE: {"schema": SCHEMAS.of(Problem)}}}


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
    """Return a decorator that serves a function at *path*. *answer* and *body* are types; None means nothing."""
    done: dict[str, Any] = {"description": "Done."}
    if answer is not None:
        schema = {"type": "string"} if answer is bytes else SCHEMAS.of(answer)
        done = {"description": "The answer.", "content": {media_type: {"schema": schema}}}
    code = status if answer is not None or status != 200 else 204  # noqa: PLR2004 - OK, and no content
    extra: dict[str, Any] = {}
    if body is not None:
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": SCHEMAS.of(body)}}}

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
