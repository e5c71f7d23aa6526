"""Arrays, and how the request of a member is told without repeating its array's."""

from __future__ import annotations

from gpuqueue.codec.text import VERSION, Plain, dump
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.array import Array, Axis, Indexes, Member
from gpuqueue.text.json_fields import Fields, loaded

#: How a text of :func:`of_member` ends, and in how many characters at most.
_OWNER = pattern(r',"of":(0|[1-9][0-9]{0,17}),"index":(0|[1-9][0-9]{0,6})\}\Z')
_MOST_OWNER = 50


def array_to_plain(array: Array | None) -> Plain | None:
    """Return *array* as submit.lua reads it as well: the names in this order."""
    if array is None:
        return None
    return {"indexes": str(array.indexes), "at_once": array.at_once, "axes": [str(axis) for axis in array.axes]}


def array_from_plain(plain: object) -> Array | None:
    """Return the array that *plain* describes, None where it describes none."""
    if plain is None:
        return None
    fields = Fields(plain, "an array")
    return Array(
        indexes=Indexes.parse(fields.text("indexes")),
        at_once=fields.whole_or_none("at_once"),
        axes=tuple(map(Axis.parse, fields.texts("axes"))),
    )


def member_from_plain(plain: Fields) -> Member | None:
    """Return whose member a request says that it is, None where it says nothing."""
    return Member(plain.whole("of"), plain.whole("index")) if plain.has("of") else None


def of_member(payload: str, member: Member) -> str:
    """Return the spec of a *member* from the *payload* of its array: that, and whose member it is."""
    owner = f',"of":{member.array_id},"index":{member.index}}}'
    return payload if payload.endswith(owner) else payload[:-1] + owner


def without_member(payload: object) -> tuple[str, Member] | None:
    """Return the *payload* of an array and the member for which :func:`of_member` told it, None where it did not."""
    if not isinstance(payload, str):
        return None
    found = _OWNER.search(payload, max(0, len(payload) - _MOST_OWNER))
    if found is None:
        return None
    return payload[: found.start()] + "}", Member(int(found[1]), int(found[2]))


def member_note(member: Member) -> str:
    """Return what stands for the spec of a *member* where its array's is kept anyway."""
    return dump({"v": VERSION, "of": member.array_id, "index": member.index})


def whole_payload(payload: str, array: str | None) -> str:
    """Return a spec that can be read alone, from one that may be a :func:`member_note`, and its array's if known."""
    if array is None or len(payload) > 100:  # noqa: PLR2004 - a note has two numbers, a spec more than ten fields
        return payload
    try:
        plain = loaded(payload, "a job's request")
        member = None if plain.has("argv") else member_from_plain(plain)
    except Unreadable:
        return payload
    return payload if member is None else of_member(array, member)
