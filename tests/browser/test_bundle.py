"""The page in a few files, as a wheel has it, in a real browser."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuqueue.service.web.files import PAGE_HEADERS, PageFiles

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
PAGE_PARTS = runpy.run_path(str(ROOT / "page_parts.py"))
#: Most files that the page loads before its first content.
MOST_FILES = 5
NOT_SIGNED_IN = {"error": {"code": "not_authenticated", "message": "sign in"}}


@pytest.fixture
def bundled(tmp_path: Path) -> PageFiles:
    """Return the files of the page with a bundle, made in a copy of this tree."""
    if not (ROOT / "node_modules" / ".bin" / "esbuild").exists():
        pytest.skip("the bundler is missing: npm ci")
    shutil.copytree(ROOT / "gpuqueue" / "web", tmp_path / "gpuqueue" / "web", ignore=shutil.ignore_patterns("built"))
    (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
    assert PAGE_PARTS["bundle"](tmp_path)
    assert not PAGE_PARTS["bundle"](tmp_path), "it is there already"
    return PageFiles(tmp_path / "gpuqueue" / "web")


@pytest.fixture
def address(bundled: PageFiles) -> Iterator[str]:
    """Serve the files with the headers of the service, to somebody who is not signed in, and return the address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = re.sub(r"^/(static/[0-9a-f]+/)?", "", self.path) or "index.html"
            found = bundled.current().get(name)
            content = json.dumps(NOT_SIGNED_IN).encode() if found is None else found.content
            self.send_response(401 if found is None else 200)
            self.send_header("Content-Type", "application/json" if found is None else found.media_type)
            for header, value in PAGE_HEADERS.items():
                self.send_header(header, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_words: Any) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_bundle_runs_under_the_policy_and_loads_few_files(chromium: Browser, address: str) -> None:
    """The sign-in form is the whole page without an account: all its modules and styles are there."""
    page = chromium.new_page()
    loaded: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    page.get_by_label("Access token").wait_for()

    files = {each for each in loaded if "/api/" not in each}
    assert len(files) <= MOST_FILES, files
    assert [] == errors
    assert "rgba(0, 0, 0, 0)" != page.evaluate("getComputedStyle(document.body).backgroundColor"), "no style"
    page.close()


def test_the_bundle_has_all_views_and_all_styles(bundled: PageFiles) -> None:
    """A view that is shown later is in it: a tab that was opened before an upgrade has all of its page."""
    found = bundled.current()
    script, style = (found[f"built/app.{kind}"].content.decode() for kind in ("js", "css"))
    assert "import(" not in script
    assert "@import" not in style
    for words in ("Statistics", "Access token", "Loading the devices"):
        assert words in script
    assert ".day-chart" in style
    assert PAGE_PARTS["tree_of"](bundled._directory) == bundled.tree
