"""The headers of the page: what a browser may load and run on it."""

from __future__ import annotations

#: Everything comes from this service. Nothing on the page runs that is not one of its files, and no other site shows
#: the page in a frame.
_ALLOWED = {
    "default-src": "'self'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
}

PAGE_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{what} {where}" for what, where in _ALLOWED.items()),
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
