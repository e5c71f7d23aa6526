"""What people say of a job beside what it asks for: words to find it by, and a note. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

#: Most words that one job has; set_tags.lua holds to the same.
MAX_TAGS = 32
#: Longest note, in characters.
MAX_NOTE = 1000

_TAG = pattern(r"[A-Za-z0-9_.@+-]{1,64}")


def tags_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return *words* as the tags of one job: each once, in their order.

    Raises:
        BadRequest: one is no tag, or there are too many.

    """
    found = tuple(dict.fromkeys(words))
    for word in found:
        if not _TAG.fullmatch(word):
            raise BadRequest(f"{brief(word)} is no tag: letters, digits and _ . @ + - only, at most 64 of them")
    if len(found) > MAX_TAGS:
        raise BadRequest(f"a job has at most {MAX_TAGS} tags, not {len(found)}")
    return found
