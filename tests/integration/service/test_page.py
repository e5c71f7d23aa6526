"""The page as the service sends it: its headers, its files, and the answer where its parts are missing."""

from __future__ import annotations

import gzip
import re

import pytest
from factories import must_claim
from service_fixtures import ServedSite, ask, mine
from web_browser import Answer, Browser

from gpuqueue.model.job import JobState
from gpuqueue.model.run import Ending
from gpuqueue.service.routes.page import NO_PAGE
from gpuqueue.service.web.files import NoPage, PageFiles


@pytest.fixture
def browser(served: ServedSite) -> Browser:
    """Return a browser that nobody has signed in with."""
    return Browser(served)


@pytest.fixture
def page(browser: Browser) -> Answer:
    """Return the page, without its parts skip."""
    try:
        PageFiles().current()
    except NoPage:
        pytest.skip("the third-party parts of the page are missing: python3 page_parts.py")
    return browser.ask("GET", "/")


def test_whatever_is_at_the_address_of_the_page_may_run_nothing_of_others(browser: Browser) -> None:
    """The policy holds with and without the parts, also where a file is missing."""
    answer = browser.ask("GET", "/")
    policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))
    assert ("'self'", "'self'", "'self'") == tuple(policy[each] for each in ("default-src", "script-src", "style-src"))
    assert ("'none'", "'none'", "'none'") == tuple(
        policy[each] for each in ("frame-ancestors", "base-uri", "object-src")
    )
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert ("nosniff", "no-referrer", "DENY") == tuple(
        answer.headers[each] for each in ("x-content-type-options", "referrer-policy", "x-frame-options")
    )
    if answer.status == 503:
        assert ("text/plain; charset=utf-8", NO_PAGE.encode()) == (answer.headers["content-type"], answer.value)


def test_files_stay_in_the_browser_until_one_changes(browser: Browser, page: Answer) -> None:
    """The page is asked for each time, and costs nothing while it is the same. Its files are kept."""
    assert (200, "no-cache") == (page.status, page.headers["cache-control"])
    assert 304 == browser.ask("GET", "/", If_None_Match=page.headers["etag"]).status
    found = [str(each) for each in re.findall(r'(?:src|href)="([^"]+)"', page.value.decode())]
    assert len(found) > 10
    for each in found:
        file = browser.ask("GET", f"/{each}", Accept_Encoding="gzip")
        assert (200, "public, max-age=31536000, immutable") == (file.status, file.headers["cache-control"]), each
        is_small = "content-encoding" not in file.headers
        assert file.value if is_small else gzip.decompress(file.value), each


@pytest.mark.parametrize(
    "path", ["gone.js", "../service/site.py", "%2e%2e/service/site.py", "..%2fservice%2fsite.py", "/etc/passwd", ""]
)
def test_nothing_but_a_file_of_the_page_is_sent(browser: Browser, path: str) -> None:
    """No path leads out of the page."""
    assert 404 == browser.ask("GET", f"/static/x/{path}").status


def test_the_page_holds_no_data(browser: Browser, page: Answer) -> None:
    """It is the same for everybody, before anybody has signed in."""
    assert b"gpuqueue" in page.value
    assert "set-cookie" not in page.headers
    assert 401 == browser.api("GET", "/overview").status


def test_a_message_on_the_page_names_no_path_of_the_service(served: ServedSite, browser: Browser) -> None:
    """A program of the owner learns where the log should be. On the page, it is a mark."""
    browser.api("POST", "/web/session", {"token": mine(served)})
    with served.client("unix") as owner:
        job = owner.jobs.submit(["true"], mem="1M").id
    claim = must_claim(served.queue)
    log = served.settings.runs_dir / str(job) / claim.token / "log"
    served.queue.runs.started(job, claim.token, lease_s=300, log_path=str(log), devices=())
    ending = Ending.from_status(0)
    served.queue.runs.finish(job, claim.token, state=JobState.SUCCEEDED, ending=ending, duration_s=1.0, devices=())
    served.record()

    shown = browser.api("GET", f"/jobs/{job}/log").value["detail"]
    status, known = ask(served, f"/jobs/{job}/log", mine(served))
    assert (409, str(log) in known["detail"]) == (status, True)
    assert str(served.directory) not in shown
    assert known["detail"].replace(str(log), "…") == shown
