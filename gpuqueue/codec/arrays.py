"""Arrays, and the requests of their members, which are derived from the request of the array."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.codec.text import VERSION, Plain, dump
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.imports import later, pattern
from gpuqueue.model.array import Array, Indexes, Member
from gpuqueue.text.json_fields import Fields, loaded

if TYPE_CHECKING:
    from gpuqueue.model import sweep
else:  # few jobs are sweeps
    sweep = later("gpuqueue.model.sweep")

#: The end of a text of :func:`of_member`, and its greatest length in characters.
_OWNER = pattern(r',"of":(0|[1-9][0-9]{0,17}),"index":(0|[1-9][0-9]{0,6})\}\Z')
_MOST_OWNER = 50


def array_to_plain(array: Array) -> Plain:
    """Return *array* as plain values.

    The order of the keys matters: ``shared/array.lua`` parses the text with a pattern.
    """
    return {"indexes": str(array.indexes), "at_once": array.at_once, "axes": [str(axis) for axis in array.axes]}


def array_from_plain(plain: object) -> Array:
    """Return the array that *plain* describes."""
    fields = Fields(plain, "an array")
    return Array(
        indexes=Indexes.parse(fields.text("indexes")),
        at_once=fields.whole_or_none("at_once"),
        axes=tuple(sweep.Axis.parse(each) for each in fields.texts("axes")),
    )


def member_from_plain(plain: Fields) -> Member | None:
    """Return the member that a request names, None if it names none."""
    return Member(plain.whole("of"), plain.whole("index")) if plain.has("of") else None


def of_member(payload: str, member: Member) -> str:
    """Return the spec of *member*: the *payload* of its array, plus the array's id and the member's index."""
    owner = f',"of":{member.array_id},"index":{member.index}}}'
    return payload if payload.endswith(owner) else payload[:-1] + owner


def without_member(payload: object) -> tuple[str, Member] | None:
    """Return the array's *payload* and the member that :func:`of_member` added to it.

    Return None if no member was added.
    """
    if not isinstance(payload, str):
        return None
    found = _OWNER.search(payload, max(0, len(payload) - _MOST_OWNER))
    if found is None:
        return None
    return payload[: found.start()] + "}", Member(int(found[1]), int(found[2]))


def member_note(member: Member) -> str:
    """Return a short reference that is stored in place of the spec of *member*: its array's spec is stored anyway."""
    return dump({"v": VERSION, "of": member.array_id, "index": member.index})


def whole_payload(payload: str, array: str | None) -> str:
    """Return a complete spec from *payload*, which may be a :func:`member_note`.

    *array* is the spec of the member's array, if it is known.
    """
    if array is None or len(payload) > 100:  # noqa: PLR2004 - a note has two numbers, a spec more than ten fields
        return payload
    try:
        plain = loaded(payload, "a job's request")
        member = None if plain.has("argv") else member_from_plain(plain)
    except Unreadable:
        return payload
    return payload if member is None else of_member(array, member)
