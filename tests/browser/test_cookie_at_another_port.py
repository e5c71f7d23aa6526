"""The attack on a page at 127.0.0.1: a server of another account, at another port, gets the cookie from the browser."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from bounded import until
from own_home import Home

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: What the page of the other server tries from within the browser.
TRY = """async base => {
    const asked = (path, options) => fetch(base + path, {credentials: "include", ...options})
        .then(answer => answer.text(), () => "refused");
    return [
        await asked("api/v1/me"),
        await asked("api/v1/me", {headers: {"Gpuqueue-Page": "1"}}),
        await asked("api/v1/web/session", {method: "DELETE"}),
        localStorage.length,
    ];
}"""


class _Other(BaseHTTPRequestHandler):
    """A server of another account, which notes the cookies that it gets."""

    cookies: list[str]

    def do_GET(self) -> None:
        self.cookies.append(self.headers.get("Cookie") or "")
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a notebook</title>")

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def other() -> Iterator[tuple[str, list[str]]]:
    """Return the address of another server of this machine, and the cookies that it has got."""
    cookies: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Other", (_Other,), {"cookies": cookies}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", cookies
    server.shutdown()
    server.server_close()


def replayed(base: str, method: str, path: str, cookie: str, key: str | None, body: object = None) -> int:
    """Return the status of a request with a stolen cookie, by a program that claims to be the page."""
    parts = urlsplit(base)
    headers = {"Cookie": cookie, "Origin": base.rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    headers |= {} if key is None else {"Gpuqueue-Page": key}
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)) as link:
        link.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
        return link.getresponse().status


@pytest.mark.full
def test_a_cookie_at_another_port_is_worth_nothing(home: Home, chromium: Browser, other: tuple[str, list[str]]) -> None:
    """A real browser sends it there, and a replay by a program is refused. A new tab and a download still work."""
    printed = home("up", "--devices", "sim:1x1G", "--web")
    found = re.search(r"^(http://127\.0\.0\.1:\d+/)#sign-in=\S+$", printed, re.MULTILINE)
    assert found, printed
    base = found[1]
    home("submit", "--mem", "1M", "--hold", "--", "true")
    context = chromium.new_context()
    page = context.new_page()
    page.goto(found[0])
    page.get_by_role("button", name="Sign out").wait_for()

    elsewhere = context.new_page()
    elsewhere.goto(other[0])
    cookie = until(lambda: next(filter(None, other[1]), None), what="the cookie at the other port") or ""
    assert "gpuqueue-" in cookie
    said = elsewhere.evaluate(TRY, base)
    assert ["refused", "refused", "refused", 0] == said

    statuses = {
        replayed(base, method, path, cookie, key, body)
        for key in (None, "1", cookie.partition("=")[2])
        for method, path, body in (
            ("GET", "/me", None),
            ("GET", "/jobs/1", None),
            ("POST", "/jobs/1/cancel", None),
            ("POST", "/web/downloads", {"path": "/history/csv"}),
            ("POST", "/jobs", {"argv": ["true"], "cwd": "/", "mem_bytes": 1}),
        )
    }
    assert {401, 403} == statuses
    assert "held" in home("queue")

    tab = context.new_page()
    tab.goto(f"{base}#/history")
    tab.get_by_role("button", name="Sign out").wait_for()
    with tab.expect_download() as begun:
        tab.get_by_role("button", name="CSV").click()
    assert "gpuqueue-history.csv" == begun.value.suggested_filename
    tab.get_by_role("button", name="Sign out").click()
    tab.get_by_label("Access token").wait_for()
    page.reload()
    page.get_by_label("Access token").wait_for()
    context.close()
