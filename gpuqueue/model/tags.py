"""Tags and notes that users attach to a job. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import name_of

#: Most tags of one job. ``gpuqueue/queue/lua/acts/set_tags.lua`` has the same limit.
MAX_TAGS = 32
#: Longest note, in characters.
MAX_NOTE = 1000


def tags_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return *words* as the tags of one job, without duplicates and in their order.

    Raises:
        BadRequest: a word is no valid tag, or there are too many.

    """
    found = tuple(dict.fromkeys(words))
    for word in found:
        name_of("tag", word)
    if len(found) > MAX_TAGS:
        raise BadRequest(f"a job has at most {MAX_TAGS} tags, not {len(found)}")
    return found
