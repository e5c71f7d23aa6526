"""Redacts passwords in the URLs of the store and the history database, including malformed URLs. Pure."""

from __future__ import annotations

import re

from gpuqueue.lazy.imports import pattern

_HIDDEN = "***"
#: Query parameters from which database drivers take a password.
_SECRET_PARAMETER = pattern(r"([?&][^&=]*(?:pass|secret|token)[^&=]*=)[^&]*", re.IGNORECASE)


def without_password(url: str) -> str:
    """Return *url* with everything hidden that may be a password. In doubt, it hides too much."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    rest = _SECRET_PARAMETER.sub(rf"\1{_HIDDEN}", rest)
    return scheme + mark + (rest if rest.startswith("/") else _without_account(rest))


def _without_account(rest: str) -> str:
    """Return ``account@place`` without the account's password, which may contain any character, even ``@`` or ``/``."""
    who, at, where = rest.rpartition("@")
    if at:
        name, colon, _ = who.partition(":")
        return f"{name}:{_HIDDEN}@{where}" if colon else rest
    host, colon, port = where.partition(":")
    if colon and not where.startswith("[") and not re.match(r"\d*([/?]|$)", port):
        return f"{host}:{_HIDDEN}"  # account:password without @place
    return rest
