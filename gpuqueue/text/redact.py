"""The addresses of store and book, as they may be shown. Pure, and ready for malformed ones: people mistype them."""

from __future__ import annotations

import re

from gpuqueue.lazy.imports import pattern

_HIDDEN = "***"
#: Parameters that drivers take a password from.
_SECRET_PARAMETER = pattern(r"([?&][^&=]*(?:pass|secret|token)[^&=]*=)[^&]*", re.IGNORECASE)


def without_password(url: str) -> str:
    """Return *url* with whatever may be a password in it hidden; rather too much than too little."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    rest = _SECRET_PARAMETER.sub(rf"\1{_HIDDEN}", rest)
    return scheme + mark + (rest if rest.startswith("/") else _without_account(rest))


def _without_account(rest: str) -> str:
    """Return ``account@place`` without the account's password, which may hold any sign, an @ and a / as well."""
    who, at, where = rest.rpartition("@")
    if at:
        name, colon, _ = who.partition(":")
        return f"{name}:{_HIDDEN}@{where}" if colon else rest
    host, colon, port = where.partition(":")
    if colon and not where.startswith("[") and not re.match(r"\d*([/?]|$)", port):
        return f"{host}:{_HIDDEN}"  # an account whose @place was forgotten
    return rest
