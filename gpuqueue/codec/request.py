"""The request of a job as text. All submitters encode their requests here.

The request of a member of an array is derived from the request of the array.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gpuqueue.codec.text import VERSION, dump, meaning
from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.array import Member
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.system.exec_limits import check_exec_limits
from gpuqueue.text.json_fields import Fields, loaded

#: Largest accepted spec, in bytes of JSON. The store keeps it in memory until the job has ended.
MAX_SPEC_BYTES = 1024 * 1024
#: The end of a text of :func:`of_member`, and its greatest length in characters.
_OWNER = pattern(r',"of":(0|[1-9][0-9]{0,17}),"index":(0|[1-9][0-9]{0,6})\}\Z')
_MAX_OWNER = 50

_WHAT = "a job's request"


def encode_spec(spec: JobSpec) -> str:
    """Return *spec* as text.

    Raises:
        BadRequest: the text is larger than MAX_SPEC_BYTES, or no process could be given the command or the environment.

    """
    check_exec_limits(spec.argv, spec.env, spec.cwd)
    text = dump({"v": VERSION, **to_stored(spec)})
    if len(text) > MAX_SPEC_BYTES:
        env_bytes = len(dump(dict(spec.env)))
        remedy = (
            "submit from a smaller environment (env -i), or put large values into a file"
            if env_bytes > MAX_SPEC_BYTES // 2
            else "put large inputs into a file"
        )
        raise BadRequest(
            f"the job's command and environment take {len(text)} bytes, at most {MAX_SPEC_BYTES} are accepted: {remedy}"
        )
    return text


def decode_spec(text: object) -> JobSpec:
    """Return the spec in *text*; for the text of a member (:func:`of_member`), the spec of that member.

    Raises:
        Unreadable: *text* has no spec that this version knows.

    """
    return decode_request(text)[0]


def decode_request(text: object) -> tuple[JobSpec, Member | None]:
    """Return the spec in *text*, as :func:`decode_spec` does, and the member that it names, if any.

    Raises:
        Unreadable: *text* has no spec that this version knows.

    """
    parts = _without_member(text)
    spec, member = _read(text) if parts is None else (_of_array(parts[0]), parts[1])
    if member is None:
        return spec, None
    with meaning(_WHAT):
        return spec.of_member(member), member


@lru_cache(maxsize=8)
def _of_array(payload: str) -> JobSpec:
    """Return the spec of an array. It is cached, because members are often read one after the other."""
    return _read(payload)[0]


def _read(text: object) -> tuple[JobSpec, Member | None]:
    """Return the spec in *text* (for a member, the spec of its array), and the member that it names, if any."""
    plain = loaded(text, _WHAT)
    return from_plain(JobSpec, plain.whole_object(), _WHAT), _member_of(plain)


def _member_of(plain: Fields) -> Member | None:
    """Return the member that a request names, None if it names none."""
    return Member(plain.whole("of"), plain.whole("index")) if plain.has("of") else None


def of_member(payload: str, member: Member) -> str:
    """Return the spec of *member*: the *payload* of its array, plus the array's id and the member's index."""
    owner = f',"of":{member.array_id},"index":{member.index}}}'
    return payload if payload.endswith(owner) else payload[:-1] + owner


def _without_member(payload: object) -> tuple[str, Member] | None:
    """Return the array's *payload* and the member that :func:`of_member` added to it.

    Return None if no member was added.
    """
    if not isinstance(payload, str):
        return None
    found = _OWNER.search(payload, max(0, len(payload) - _MAX_OWNER))
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
        member = None if plain.has("argv") else _member_of(plain)
    except Unreadable:
        return payload
    return payload if member is None else of_member(array, member)


#: Name and command of a job whose request cannot be read.
UNREADABLE = "(unreadable)"


def stand_in(*, user: str, mem_bytes: int, **known: Any) -> JobSpec:
    """Return a replacement for a request that cannot be read, so that lists can still show the job.

    Raises:
        Unreadable: the known values are invalid as well.

    """
    account = Account(name=user, uid=known.pop("uid", 0), host=known.pop("host", ""))
    defaults = {"argv": (UNREADABLE,), "cwd": "/", "name": UNREADABLE}
    with meaning(_WHAT):
        return JobSpec(**{**defaults, **known, "account": account, "mem_bytes": mem_bytes})
