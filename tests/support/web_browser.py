"""A browser as the service sees one: it keeps a cookie, and sends what the page would send. It runs no script."""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import closing
from typing import Any, NamedTuple

from service_fixtures import ServedSite


class Answer(NamedTuple):
    """An answer: its status, its headers, and its JSON."""

    status: int
    headers: dict[str, str]
    value: Any


class Browser:
    """Keeps the cookie and the key of a session, and sends what the page would send."""

    def __init__(self, served: ServedSite) -> None:
        self._served = served
        self.cookie, self.key = "", ""

    def ask(self, method: str, path: str, body: Any = None, **headers: str | None) -> Answer:
        """Send a request of the page. A header None is left out."""
        served = self._served
        context = ssl.create_default_context(cafile=served.directory / "cert.pem")
        ours = {
            "Origin": f"https://127.0.0.1:{served.port}",
            "Gpuqueue_Page": self.key or "1",
            "Cookie": self.cookie or None,
        }
        sent = {name.replace("_", "-"): text for name, text in {**ours, **headers}.items() if text is not None}
        with closing(http.client.HTTPSConnection("127.0.0.1", served.port, context=context, timeout=60)) as link:
            link.request(method, path, None if body is None else json.dumps(body), sent)
            answer = link.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            content = answer.read()
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].partition(";")[0]
        is_json = "json" in found.get("content-type", "")
        value = json.loads(content) if is_json and content else content
        if path == "/api/v1/web/session" and answer.status < 300:
            self.key = value["key"] if method == "POST" else ""
        return Answer(answer.status, found, value)

    def api(self, method: str, path: str, body: Any = None, **headers: str | None) -> Answer:
        """Send a request to the API."""
        return self.ask(method, f"/api/v1{path}", body, **headers)
