"""Arrays, and how the request of a member is told without repeating its array's."""

from __future__ import annotations

from gpuqueue.array import Array, Axis, Indexes, Member
from gpuqueue.codec.text import VERSION, Plain, dump
from gpuqueue.errors import Unreadable
from gpuqueue.fields import Fields, loaded


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


def member_of(payload: object) -> Member | None:
    """Return whose member the spec in *payload* says that it is, None where it says nothing or cannot be read."""
    try:
        return member_from_plain(loaded(payload, "a job's request"))
    except Unreadable:
        return None
