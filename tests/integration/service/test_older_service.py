"""A client and a service of an earlier version, which refuses each field that it does not know."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gpuqueue.client import Client
from gpuqueue.errors import Refused
from gpuqueue.settings.settings import Settings

PROBLEM = json.dumps({"detail": "it is refused", "error": "Refused", "exit_code": 5}).encode()


class Older(ThreadingHTTPServer):
    """A service that refuses each change and keeps its body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.bodies: list[tuple[str, str, Any]] = []


class Answers(BaseHTTPRequestHandler):
    """The answers of :class:`Older`."""

    server: Older

    def do_PATCH(self) -> None:
        """Keep the body, and refuse the change."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append((self.command, self.path, json.loads(body)))
        self.send_response(409)
        self.send_header("Content-Length", str(len(PROBLEM)))
        self.end_headers()
        self.wfile.write(PROBLEM)

    do_POST = do_PATCH  # noqa: N815 - as above

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server calls it
        """Print nothing."""


@pytest.fixture
def older() -> Iterator[Older]:
    """Return a running service."""
    with Older() as service:
        thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield service
        service.shutdown()
        thread.join()


def test_a_change_of_the_priority_is_all_that_is_sent(older: Older) -> None:
    """Fields that came with later versions are left out unless the person set them."""
    url = f"http://127.0.0.1:{older.server_port}"
    with Client(Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_URL": url})) as client:
        with pytest.raises(Refused, match="it is refused"):
            client.jobs.edit(12, priority="high")
        with pytest.raises(Refused, match="it is refused"):
            client.jobs.retry(12, priority="high")

    edit, retry = older.bodies
    assert ("PATCH", "/api/v1/jobs/12", {"priority": "high"}) == edit
    assert ("POST", "/api/v1/jobs/12/retry", {"priority": "high"}) == (*retry[:2], retry[2]["changes"])
    assert {"changes", "fallback_env"} == {*retry[2]}
