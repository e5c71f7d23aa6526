"""The cookie of a browser's session, the page's part of its secret, and the check that a request is that of our page.

A browser sends a cookie along, also if another page made it send the request, and to each server at another port of the
same host, of any account. So the cookie is half of the secret: the page keeps the other half where only its own origin
reads it, and sends it in a header. ``SameSite=Strict`` keeps other sites out, but sites at other ports of the same host
are the same site to a browser. So what changes something also needs the origin of this service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from gpuqueue.model.access import Forbidden
from gpuqueue.service.identity.browser_sessions import session_id

#: The header of our page: its part of the secret of the session, or 1 before somebody has signed in.
PAGE_HEADER = "gpuqueue-page"
#: Methods that change nothing.
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Request(Protocol):
    """What counts of a request."""

    @property
    def method(self) -> str:
        """Its method."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers."""

    @property
    def cookies(self) -> Mapping[str, str]:
        """Its cookies."""


def cookie_name(*, is_tls: bool, port: int | None) -> str:
    """Return the name of the cookie. Without TLS, services at other ports of the host would share one name."""
    return "__Host-gpuqueue" if is_tls else f"gpuqueue-{port or _DEFAULT_PORTS['http']}"


def session_of(request: Request, *, is_tls: bool, port: int | None) -> str | None:
    """Return the id of the session that *request* brings.

    Raises:
        Forbidden: the request would change something, and does not come from our page.

    """
    cookie = request.cookies.get(cookie_name(is_tls=is_tls, port=port))
    if cookie and request.method not in _SAFE:
        check_own_page(request)
    key = request.headers.get(PAGE_HEADER)
    return session_id(cookie, key) if cookie and key else None


def check_own_page(request: Request) -> None:
    """Check that *request* comes from the page of this service.

    Raises:
        Forbidden: it comes from another site, or from a program that does not say so.

    """
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    fetched = request.headers.get("sec-fetch-site", "same-origin")
    is_ours = bool(host) and urlsplit(origin).netloc == host and fetched == "same-origin"
    if not (is_ours and request.headers.get(PAGE_HEADER)):
        raise Forbidden("a browser changes something only from the page of this service: programs use an access token")


def set_cookie(name: str, secret: str, *, is_tls: bool, age_s: float) -> str:
    """Return the header that sets the cookie; one with an *age_s* of 0 deletes it."""
    secure = "; Secure" if is_tls else ""
    return f"{name}={secret}; Path=/; Max-Age={int(age_s)}; HttpOnly; SameSite=Strict{secure}"
