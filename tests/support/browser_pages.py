"""A real browser for the tests of the page: Chromium of the machine, driven by Playwright. tests/browser uses it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from page_scene import alive, fill
from service_fixtures import ServedSite, mine, serving

from gpuqueue.service.web.files import NoPage, PageFiles

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).parents[2]
#: Where the pictures of the tests are.
PICTURES = ROOT / "build" / "pictures"
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
PHONE = {"width": 390, "height": 844}
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
#: A browser of a test looks for no update, and calls nobody.
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)

Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Start the browser of the machine. The tests are skipped where there is none.

    Not for the whole session: while it is there, an event loop runs in this thread, and tests of other modules that run
    one of their own would fail.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium here to show the page: apt install chromium")
    try:
        PageFiles().current()
    except NoPage:
        pytest.skip("the third-party parts of the page are missing: python3 page_parts.py")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=[*QUIET])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lively() -> Iterator[ServedSite]:
    """Return a site with devices and jobs of three users."""
    with serving(GPUQUEUE_HEARTBEAT="10s") as site:
        runs = fill(site.queue, site.settings.runs_dir)
        with alive(site.queue, runs):
            yield site


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Open]:
    """Return a function that opens a page in a browser of its own, and that fails if the page has logged an error."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def begin(site: ServedSite, view: str = "overview", *, token: str | None = "mine", **options: Any) -> Page:
        wanted: dict[str, Any] = {"ignore_https_errors": True, "viewport": {"width": 1280, "height": 800}, **options}
        context = chromium.new_context(**wanted)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        base = f"https://127.0.0.1:{site.port}/"
        if token is not None:
            page.goto(base)
            sign_in(page, mine(site, token))
        page.goto(f"{base}#/{view}")
        return page

    begin.errors = errors  # type: ignore[attr-defined]
    yield begin
    for each in contexts:
        each.close()
    # A refused request is logged by the browser itself: 401 before the sign-in, 403 where the test wants it.
    wrong = [each for each in errors if "Failed to load resource" not in each and "net::ERR" not in each]
    assert not wrong, wrong


def sign_in(page: Page, token: str) -> None:
    """Sign in with a token, as a person would."""
    page.get_by_label("Access token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="Sign out").wait_for()


def answered(page: Page, *paths: str) -> None:
    """Wait until the page has an answer from each of *paths* of the API, given by their ends, and has drawn it."""
    page.wait_for_function(
        """paths => paths.every(path => performance.getEntriesByType("resource")
            .some(each => each.responseEnd && new URL(each.name).pathname.endsWith(path)))""",
        arg=[*paths],
    )
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def picture(page: Page, name: str) -> None:
    """Keep a picture of what is shown."""
    page.screenshot(path=str(PICTURES / f"{name}.png"), animations="disabled")  # makes the directories


def violations(page: Page) -> dict[str, list[str]]:
    """Return what axe finds wrong with a page for people who do not see it, by rule. It needs ``bypass_csp``."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: python3 page_parts.py --tests")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = page.evaluate("axe.run().then(result => result.violations)")
    return {each["id"]: [node["html"][:200] for node in each["nodes"]][:3] for each in found}
