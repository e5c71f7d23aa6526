"""The marks of a run, as the store and the history have them."""

from __future__ import annotations

import json

from gpuqueue.clock import from_epoch_ms
from gpuqueue.codec.wire import dump, from_plain, meaning, to_stored
from gpuqueue.model.run_mark import RunMark, sorted_marks
from gpuqueue.text.json_fields import loaded

_MARKS = "the marks of a run"


def decode_store_marks(text: str | None) -> tuple[RunMark, ...]:
    """Return the marks of a run, as the store and its events have them (``lua/acts/run_mark.lua``).

    Raises:
        Unreadable: *text* has no marks.

    """
    if not text:
        return ()
    plain = loaded(text, _MARKS)
    found: dict[str, RunMark] = {}
    for kind in plain:
        each = plain.below(kind, _MARKS)
        with meaning(_MARKS):
            until = from_epoch_ms(int(each.text("until"))) if each.has("until") else None
            since = from_epoch_ms(int(each.text("since")))
        found[kind] = RunMark(kind=kind, since=since, until=until, what=each.text("what", ""))
    return sorted_marks(found)


def encode_marks(marks: tuple[RunMark, ...]) -> str | None:
    """Return the marks of a run as the text of a column, None if there are none."""
    return dump(to_stored(marks)) if marks else None


def decode_marks(text: str) -> tuple[RunMark, ...]:
    """Return the marks that :func:`encode_marks` wrote.

    Raises:
        Unreadable: *text* has no such marks.

    """
    with meaning(_MARKS):
        marks: tuple[RunMark, ...] = from_plain(tuple[RunMark, ...], json.loads(text), _MARKS)
    return marks
