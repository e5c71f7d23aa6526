"""Tags and notes that users attach to a job. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

#: Most tags of one job. ``gpuqueue/queue/lua/acts/set_tags.lua`` has the same limit.
MAX_TAGS = 32
#: Longest note, in characters.
MAX_NOTE = 1000

_TAG = pattern(r"[A-Za-z0-9_.@+-]{1,64}")


def tags_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return *words* as the tags of one job, without duplicates and in their order.

    Raises:
        BadRequest: a word is no valid tag, or there are too many.

    """
    found = tuple(dict.fromkeys(words))
    for word in found:
        if not _TAG.fullmatch(word):
            raise BadRequest(f"{brief(word)} is no tag: letters, digits and _ . @ + - only, at most 64 of them")
    if len(found) > MAX_TAGS:
        raise BadRequest(f"a job has at most {MAX_TAGS} tags, not {len(found)}")
    return found
