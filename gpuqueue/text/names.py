"""The one rule for names of users, pools and tags. They become part of keys in the store, and of lists with commas."""

from __future__ import annotations

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

#: No colons, no spaces, no commas, no control characters.
_NAME = pattern(r"[A-Za-z0-9_.@+-]{1,64}")


def is_name(text: str) -> bool:
    """Return whether *text* can be the name of a user, a pool or a tag."""
    return _NAME.fullmatch(text) is not None


def name_of(what: str, text: str) -> str:
    """Return *text*, the name of a *what*.

    Raises:
        BadRequest: *text* cannot be a name.

    """
    if not is_name(text):
        raise BadRequest(f"{brief(text)} is no {what}: letters, digits and _ . @ + - only, at most 64 of them")
    return text
