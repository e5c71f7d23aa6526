"""Browsers sign in, act with the rights of their account, and are signed out: over TLS, as a browser would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bounded import until
from service_fixtures import ServedSite, ask, mine
from web_browser import Browser

from gpuqueue.client import Client
from gpuqueue.model.audit import AuditEntry
from gpuqueue.system.account import current_account


@pytest.fixture
def browser(served: ServedSite) -> Browser:
    """Return a browser that nobody has signed in with."""
    return Browser(served)


@pytest.fixture
def owner(served: ServedSite) -> Iterator[Client]:
    """Return a client of this account over the socket."""
    with served.client("unix") as client:
        yield client


def code_of(client: Client) -> dict[str, Any]:
    """Return a new one-time code, as ``gpuqueue web`` gets it."""
    made = client.access.sign_in_code()
    return {"code": made.code}


def test_a_code_signs_a_browser_in_once(served: ServedSite, browser: Browser, owner: Client) -> None:
    """The browser gets a cookie that no script can read, and is the account that made the code. Nobody else is."""
    body = code_of(owner)
    answer = browser.api("POST", "/web/session", body)
    attributes = {each.strip() for each in answer.headers["set-cookie"].split(";")[1:]}

    assert (200, "no-store") == (answer.status, answer.headers["cache-control"])
    assert browser.cookie.startswith("__Host-gpuqueue=")
    assert {"HttpOnly", "Secure", "SameSite=Strict", "Path=/"} <= attributes
    me = browser.api("GET", "/me").value
    assert (current_account("here").name, "session", None) == (me["account"], me["via"], me["token_id"])
    assert 401 == Browser(served).api("POST", "/web/session", body).status


def test_a_token_signs_a_browser_in_with_its_scopes(served: ServedSite, browser: Browser) -> None:
    """The session has the rights of the token, and ends with it."""
    token = served.token("carl", 54323, frozenset())
    assert 200 == browser.api("POST", "/web/session", {"token": f" {token} "}).status
    me = browser.api("GET", "/me")
    assert 403 == me.status
    assert "no scope read" in me.value["detail"]


def test_a_revoked_token_ends_its_sessions(served: ServedSite, browser: Browser, owner: Client) -> None:
    """After the revocation the browser is nobody."""
    token = served.token("dora", 54322)
    browser.api("POST", "/web/session", {"token": token})
    assert "dora" == browser.api("GET", "/me").value["account"]
    owner.access.revoke_token(token[3:11])
    assert 401 == browser.api("GET", "/me").status


def test_signing_out_ends_the_session(browser: Browser, owner: Client) -> None:
    """The cookie is deleted, and the secret that it had proves nothing any more."""
    browser.api("POST", "/web/session", code_of(owner))
    before = browser.cookie, browser.key
    answer = browser.api("DELETE", "/web/session")
    assert (204, True) == (answer.status, "Max-Age=0" in answer.headers["set-cookie"])
    browser.cookie, browser.key = before
    assert 401 == browser.api("GET", "/me").status


def test_the_cookie_alone_proves_nothing(browser: Browser, owner: Client) -> None:
    """Servers at other ports of the host get it from the browser. Without the key of the page it reads nothing."""
    job = owner.jobs.submit(["true"], mem="1M", hold=True)
    browser.api("POST", "/web/session", code_of(owner))
    key = browser.key
    for stolen in (None, "1", key[:-1], browser.cookie.partition("=")[2]):
        statuses = [browser.api("GET", path, Gpuqueue_Page=stolen).status for path in ("/me", "/stats/csv")]
        assert [401, 401] == statuses
        assert browser.api("POST", f"/jobs/{job.id}/cancel", Gpuqueue_Page=stolen).status in {401, 403}
    cookie, browser.cookie = browser.cookie, ""
    assert 401 == browser.api("GET", "/me").status  # nor does the key alone
    browser.cookie = cookie
    assert 200 == browser.api("GET", "/me").status
    assert "held" == browser.api("GET", f"/jobs/{job.id}").value["state"]


def test_a_download_needs_a_code_that_works_once(browser: Browser, owner: Client, served: ServedSite) -> None:
    """A browser sends no key with a download. The code is for this file, and only a session of a browser gets one."""
    browser.api("POST", "/web/session", code_of(owner))
    path, stranger = "/history/csv?name=a*", Browser(served)

    def code(path: str) -> str:
        made = browser.api("POST", "/web/downloads", {"path": path})
        assert 200 == made.status, made.value
        return str(made.value["code"])

    first = code(path)
    answer = stranger.api("GET", f"{path}&download={first}", Gpuqueue_Page=None)
    assert (200, 'attachment; filename="gpuqueue-history.csv"') == (
        answer.status,
        answer.headers["content-disposition"],
    )
    assert 401 == stranger.api("GET", f"{path}&download={first}").status
    assert 401 == stranger.api("GET", f"/stats/csv?download={code(path)}").status
    assert 401 == stranger.api("GET", f"/history/csv?name=b*&download={code(path)}").status
    assert 401 == stranger.api("GET", f"{path}&download={code(path)}&name=b*").status
    assert 200 == stranger.api("GET", f"/stats/csv?download={code('/stats/csv')}").status
    assert 400 == stranger.api("GET", f"/me?download={code('/me')}").status
    assert 401 == stranger.api("POST", "/web/downloads", {"path": path}).status
    assert 403 == ask(served, "/web/downloads", mine(served), method="POST", body={"path": path})[0]
    late = code(path)
    browser.api("DELETE", "/web/session")
    assert 401 == stranger.api("GET", f"{path}&download={late}").status


@pytest.mark.parametrize(
    "body",
    [
        {"code": "guess"},
        {"code": "gu\ud800ss"},
        {"token": "gq_abcdefgh_" + "A" * 43},
        {"token": "gq_"},
        {"code": None},
    ],
)
def test_what_proves_nothing_sets_no_cookie(browser: Browser, body: dict[str, Any]) -> None:
    """A guess is refused without a reason that helps guessing."""
    answer = browser.api("POST", "/web/session", body)
    assert answer.status in {400, 401}
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "https://127.0.0.1:1"},
        {"Origin": None},
        {"Gpuqueue_Page": None},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_another_site_changes_nothing(browser: Browser, owner: Client, headers: dict[str, str | None]) -> None:
    """The cookie is there, and the request is refused: nothing is cancelled, and nobody is signed in or out."""
    job = owner.jobs.submit(["true"], mem="1M", hold=True)
    assert 403 == browser.api("POST", "/web/session", code_of(owner), **headers).status
    browser.api("POST", "/web/session", code_of(owner))
    assert 403 == browser.api("POST", f"/jobs/{job.id}/cancel", **headers).status
    assert 403 == browser.api("DELETE", "/web/session", **headers).status
    assert "held" == browser.api("GET", f"/jobs/{job.id}").value["state"]
    assert 200 == browser.api("POST", f"/jobs/{job.id}/cancel").status


def test_a_browser_has_the_rights_of_its_account(served: ServedSite, browser: Browser, owner: Client) -> None:
    """Bob's browser changes none of my jobs, makes no token, and no code for another browser."""
    job = owner.jobs.submit(["true"], mem="1M", hold=True)
    browser.api("POST", "/web/session", {"token": mine(served, "bobs")})

    for action in ("cancel", "hold", "release"):
        refused = browser.api("POST", f"/jobs/{job.id}/{action}")
        assert (403, True) == (refused.status, f"only {job.spec.account.name} may" in refused.value["detail"])
    assert 403 == browser.api("PATCH", f"/jobs/{job.id}", {"priority": "high"}).status
    assert ["(hidden)"] == browser.api("GET", f"/jobs/{job.id}").value["spec"]["argv"]
    assert (403, 403) == (browser.api("POST", "/tokens", {}).status, browser.api("POST", "/web/codes").status)
    owner.jobs.cancel(job.id)


def test_a_code_needs_an_account(served: ServedSite, browser: Browser) -> None:
    """Nobody gets one without a proof, and a token's code leads to the address of the service."""
    assert 401 == browser.api("POST", "/web/codes").status
    status, made = ask(served, "/web/codes", mine(served), method="POST")
    assert (200, f"https://127.0.0.1:{served.port}") == (status, made["url"])


def test_a_sign_in_is_in_the_audit_log(browser: Browser, owner: Client) -> None:
    """The log has who signed in and from where, and no secret."""
    me, code = current_account("here").name, code_of(owner)
    before = {each.id for each in owner.access.audit(action="sign-in")}
    browser.api("POST", "/web/session", code)

    def new() -> list[AuditEntry]:
        return [each for each in owner.access.audit(action="sign-in", user=me) if each.id not in before]

    entry = until(new, what="the entry")[0]
    assert ("session", "127.0.0.1") == (entry.via, entry.address)
    assert code["code"] not in str(entry)
