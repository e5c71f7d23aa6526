"""``up --web`` serves the page to its own user, on this machine only."""

from __future__ import annotations

import http.client
import json
import re
import socketserver
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from own_home import Home

from gpuqueue.embedded.page import PageService
from gpuqueue.settings.settings import Settings

LINK = re.compile(r"^http://127\.0\.0\.1:(\d+)/#sign-in=(\S{43})$", re.MULTILINE)


def ask(
    link: str, method: str, path: str, body: Any = None, cookie: str = "", key: str = "1", **more: str
) -> tuple[int, Any, str]:
    """Return the status, the JSON and the cookie of an answer."""
    parts = urlsplit(link)
    headers = {"Origin": f"http://{parts.netloc}", "Gpuqueue-Page": key, "Cookie": cookie, **more}
    with closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)) as connection:
        connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        set_cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
        return answer.status, json.loads(answer.read() or b"null"), set_cookie


def test_one_person_has_the_page_on_one_machine(home: Home) -> None:
    """The link signs one browser in as this account. ``gpuqueue web`` makes another, and ``down`` ends the service."""
    output = home("up", "--devices", "sim:1x1G", "--web")
    found = LINK.search(output)
    assert found, output
    link = found[0]
    assert 401 == ask(link, "GET", "/overview")[0]
    status, signed_in, cookie = ask(link, "POST", "/web/session", {"code": found[2]})
    assert (200, f"gpuqueue-{found[1]}") == (status, cookie.partition("=")[0])
    assert 401 == ask(link, "GET", "/overview", cookie=cookie)[0]  # what a server at another port could send
    overview = ask(link, "GET", "/overview", cookie=cookie, key=signed_in["key"])[1]
    evil = {"Host": f"evil.example:{found[1]}"}  # a name of another page that leads to this machine
    status, problem, _ = ask(link, "GET", "/overview", cookie=cookie, key=signed_in["key"], **evil)
    assert (421, True) == (status, "this is not the service of 'evil.example" in problem["detail"])
    assert ["simulated"] == [each["kind"] for each in overview["devices"]]
    assert 401 == ask(link, "POST", "/web/session", {"code": found[2]})[0]

    again = LINK.search(home("web", "--no-open"))
    assert again
    assert (found[1], True) == (again[1], found[2] != again[2])
    home("down")
    assert [] == home.ours()


@pytest.mark.parametrize(("status", "trouble"), [(200, None), (503, "This service has no page. Install it.")])
def test_up_says_that_an_installation_has_no_page(tmp_path: Path, status: int, trouble: str | None) -> None:
    """An installation from the sources without Node.js has no page. The browser alone said so."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # as http.server calls it
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"This service has no page.\n\nInstall it.\n")

        def address_string(self) -> str:
            return "a unix socket"

    page = PageService(Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path)}))
    with socketserver.UnixStreamServer(str(page.socket), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert trouble == page.trouble()
        server.shutdown()
