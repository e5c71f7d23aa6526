"""Measures the service's own requests: how many, and how long until the answer begins."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Upper bounds of the latency, in seconds. A long poll takes up to a minute.
BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
#: Methods with a label of their own. A client can send any word.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: The route of a request that no route serves.
UNKNOWN_ROUTE = "none"


class RequestTimes:
    """The figures of all requests, by the template of the route: never by the path, which clients choose."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "gpuqueue_http_request_duration_seconds",
            "Time from the head of a request to the head of its answer. A long poll waits in between.",
            ("method", "route"),
            buckets=BUCKETS_S,
            registry=registry,
        )
        self.total = Counter(
            "gpuqueue_http_requests", "Requests that were answered.", ("method", "route", "code"), registry=registry
        )

    def observe(self, method: str, route: str, status: int, took_s: float) -> None:
        """Count a request that was answered with *status*."""
        method = method if method in _METHODS else "other"
        self.seconds.labels(method, route).observe(took_s)
        self.total.labels(method, route, str(status)).inc()


class Measured:
    """ASGI middleware that passes each request on, and reports it when its answer begins."""

    def __init__(self, app: ASGIApp, times: RequestTimes) -> None:
        """Pass requests to *app*."""
        self._app, self._times = app, times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.monotonic()

        async def observed(message: Message) -> Any:
            if message["type"] == "http.response.start":
                took_s = time.monotonic() - start_s
                template = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
                self._times.observe(scope["method"], template, message["status"], took_s)
            await send(message)

        await self._app(scope, receive, observed)
