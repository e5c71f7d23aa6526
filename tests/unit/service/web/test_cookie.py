"""The cookie of a session, and the check that a request comes from our own page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from gpuqueue.model.access import Forbidden
from gpuqueue.service.identity.browser_sessions import session_id
from gpuqueue.service.web.cookie import check_own_page, cookie_name, session_of, set_cookie

OURS = {
    "origin": "https://gpu.example.org:8443",
    "host": "gpu.example.org:8443",
    "gpuqueue-page": "1",
    "sec-fetch-site": "same-origin",
}


class Request(NamedTuple):
    """What counts of a request."""

    method: str
    headers: Mapping[str, str]
    cookies: Mapping[str, str]


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites() -> None:
    """Over TLS it belongs to this host alone. Without TLS its name has the port."""
    assert "__Host-gpuqueue=x; Path=/; Max-Age=60; HttpOnly; SameSite=Strict; Secure" == set_cookie(
        cookie_name(is_tls=True, port=8443), "x", is_tls=True, age_s=60
    )
    assert "gpuqueue-8080=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict" == set_cookie(
        cookie_name(is_tls=False, port=8080), "", is_tls=False, age_s=0
    )


def test_our_page_may_change_something() -> None:
    """With the header, the origin and the host of this service. Older browsers say nothing about the site."""
    check_own_page(Request("POST", OURS, {}))
    check_own_page(Request("POST", {name: text for name, text in OURS.items() if name != "sec-fetch-site"}, {}))


@pytest.mark.parametrize(
    "changed",
    [
        {"origin": "https://evil.example"},
        {"origin": "https://gpu.example.org:9999"},
        {"origin": "null"},
        {"origin": ""},
        {"host": ""},
        {"gpuqueue-page": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
)
def test_other_pages_change_nothing(changed: Mapping[str, str]) -> None:
    """Another site, another port, a form and a program without the header are refused."""
    with pytest.raises(Forbidden, match="only from the page of this service"):
        check_own_page(Request("POST", {**OURS, **changed}, {}))


def test_a_session_needs_its_cookie_and_the_key_of_the_page() -> None:
    """A server at another port of the host gets the cookie, and with it alone nothing. The name must fit, too."""
    cookies, ours = {"__Host-gpuqueue": "cookie"}, {"gpuqueue-page": "key"}

    def session(headers: Mapping[str, str], cookies: Mapping[str, str], *, is_tls: bool = True) -> str | None:
        return session_of(Request("GET", headers, cookies), is_tls=is_tls, port=80)

    assert session_id("cookie", "key") == session(ours, cookies)
    assert None is session({}, cookies)
    assert None is session({"gpuqueue-page": ""}, cookies)
    assert None is session(ours, {})
    assert None is session(ours, cookies, is_tls=False)
    assert session_id("cookie", "key") != session({"gpuqueue-page": "1"}, cookies)
    assert session_id("ab", "c") != session_id("a", "bc")


def test_only_what_changes_something_is_checked() -> None:
    """A read comes from anywhere, and a request without a cookie is that of nobody."""
    cookies, elsewhere = {"__Host-gpuqueue": "cookie"}, {"origin": "https://evil.example", "host": "gpu.example.org"}
    assert None is session_of(Request("GET", elsewhere, cookies), is_tls=True, port=None)
    assert None is session_of(Request("POST", elsewhere, {}), is_tls=True, port=None)
    with pytest.raises(Forbidden):
        session_of(Request("DELETE", elsewhere, cookies), is_tls=True, port=None)
