"""The request of a job as text. All submitters encode their requests here.

The request of a member of an array is derived from the request of the array.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpuqueue.codec.wire import VERSION, dump, from_plain, meaning, to_stored
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.lazy.imports import later, pattern
from gpuqueue.model.array import Member
from gpuqueue.model.environment import Environment, is_secret
from gpuqueue.model.job_spec import Account, JobSpec
from gpuqueue.text.json_fields import Fields, loaded
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from gpuqueue.model import run as runs
    from gpuqueue.model.job_values import JobValues
    from gpuqueue.model.mem_source import Shortage
    from gpuqueue.model.run import Ended, Ending, RunDevice, RunNote
else:
    runs = later("gpuqueue.model.run")

#: Largest accepted spec, in bytes of JSON. The store keeps it in memory until the job has ended.
MAX_SPEC_BYTES = 1024 * 1024
#: The end of a text of :func:`of_member`, and its greatest length in characters.
_OWNER = pattern(r',"of":(0|[1-9][0-9]{0,17}),"index":(0|[1-9][0-9]{0,6})\}\Z')
_MAX_OWNER = 50

_WHAT = "a job's request"
_ENVIRONMENT = "a job's environment"
#: Written in place of a request that cannot be read, because it may hold secrets.
NOT_KEPT = "(not kept: it cannot be read, and may hold secrets)"
_START, _END, _NOTES = "the report of a start", "the report of an end", "the notes of a run"


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
    return _with_member(spec, member), member


def _with_member(spec: JobSpec, member: Member | None) -> JobSpec:
    if member is None:
        return spec
    with meaning(_WHAT):
        return spec.of_member(member)


@lru_cache(maxsize=8)
def _of_array(payload: str) -> JobSpec:
    """Return the spec of an array. It is cached, because members are often read one after the other."""
    return _read(payload)[0]


def _read(text: object) -> tuple[JobSpec, Member | None]:
    """Return the spec in *text* (for a member, the spec of its array), and the member that it names, if any."""
    return _spec_in(loaded(text, _WHAT))


def _spec_in(plain: Fields) -> tuple[JobSpec, Member | None]:
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


def without_environment(payload: object) -> tuple[str, dict[str, str]]:
    """Return the request in *payload* with an empty environment, and its environment.

    Raises:
        Unreadable: *payload* has no request, or its environment has a value that is no text.

    """
    return _split(loaded(payload, _WHAT))


def _split(request: Fields) -> tuple[str, dict[str, str]]:
    env = request.below("env", _ENVIRONMENT).all_texts()
    return dump({**request.whole_object(), "env": {}}), env


def decode_apart(payload: object) -> tuple[JobSpec, Member | None, str, dict[str, str]]:
    """Return what :func:`decode_request` and :func:`without_environment` return, and parse *payload* only once.

    Raises:
        Unreadable: as they do.

    """
    request = loaded(payload, _WHAT)
    spec, member = _spec_in(request)
    return _with_member(spec, member), member, *_split(request)


def with_environment(payload: str, env: Mapping[str, str]) -> str:
    """Return the request in *payload* with *env*: the reverse of :func:`without_environment`, letter by letter.

    A request that cannot be read is returned unchanged.
    """
    try:
        return dump({**loaded(payload, _WHAT).whole_object(), "env": dict(env)})
    except Unreadable:
        return payload


def shown_request(payload: object) -> str:
    """Return *payload* as it may be stored anywhere: without its environment, or NOT_KEPT if it cannot be read."""
    try:
        return without_environment(payload)[0]
    except Unreadable:
        return NOT_KEPT


def encode_environment(env: Mapping[str, str]) -> tuple[str, str | None]:
    """Return *env* as the texts of two columns: all variables, with null for a secret, and the secrets, if any.

    The first text keeps the order, so that the request can be put together again as it was.
    """
    names = _secret_names(tuple(env))
    if not names:
        return dump(dict(env)), None
    return dump({**env, **dict.fromkeys(names)}), dump({name: env[name] for name in names})


@lru_cache(maxsize=256)
def _secret_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of *names* that look like secrets. Cached, because the jobs of a user have the same variables."""
    return tuple(filter(is_secret, names))


def decode_environment(variables: str, secrets: str | None) -> Environment:
    """Return the environment in the two texts of :func:`encode_environment`; without *secrets* their names.

    Raises:
        Unreadable: the texts are no such environment.

    """
    known = loaded(variables, _ENVIRONMENT)
    apart = {} if secrets is None else loaded(secrets, _ENVIRONMENT).all_texts()
    values: dict[str, str] = {}
    for name in known:
        if known.has(name):
            values[name] = known.text(name)
        elif name in apart:
            values[name] = apart[name]
    return Environment(variables=values, removed=tuple(name for name in known if name not in values))


def encode_started(*, log_path: str, devices: tuple[RunDevice, ...], limits: Mapping[str, int] | None = None) -> str:
    """Return the report of the start of a run as text."""
    more = {"limits": dict(limits)} if limits else {}
    return dump({"v": VERSION, "log_path": log_path, "devices": to_stored(devices), **more})


def encode_ended(
    *,
    ending: Ending,
    duration_s: float | None,
    devices: tuple[RunDevice, ...],
    peak_at_once_bytes: int | None = None,
    notes: tuple[RunNote, ...] = (),
    values: JobValues | None = None,
    shortage: Shortage | None = None,
    is_long: bool = False,
) -> str:
    """Return the report of the end of a run as text. The store reads *shortage* and *is_long*, the history does not."""
    ended = runs.Ended(
        ending=ending,
        duration_s=duration_s,
        devices=devices,
        peak_at_once_bytes=peak_at_once_bytes,
        notes=notes,
        values=values,
    )
    more = {} if shortage is None else {"shortage": to_stored(shortage)}
    if is_long:
        more["is_long"] = True
    return dump({"v": VERSION, **to_stored(ended), **more})


def decode_started(text: object) -> tuple[str, tuple[RunDevice, ...], Mapping[str, int]]:
    """Return the log's path, the devices and the limits that :func:`encode_started` wrote.

    Raises:
        Unreadable: *text* is no such report.

    """
    plain = loaded(text, _START)
    devices = from_plain(tuple[runs.RunDevice, ...], plain.each("devices"), f"the devices in {_START}")
    raw = plain.plain("limits")
    # What a later version adds is left out, so that the rest can be read.
    limits = {name: value for name, value in raw.items() if type(value) is int} if isinstance(raw, dict) else {}
    return plain.text("log_path"), devices, limits


def decode_ended(text: object) -> Ended:
    """Return the end of a run that :func:`encode_ended` wrote.

    Raises:
        Unreadable: *text* is no such report.

    """
    ended: Ended = from_plain(runs.Ended, loaded(text, _END).whole_object(), _END)
    return ended


def encode_notes(notes: tuple[RunNote, ...]) -> str | None:
    """Return the notes of a run as the text of a column, None if there are none."""
    return dump(to_stored(notes)) if notes else None


def decode_notes(text: str | None) -> tuple[RunNote, ...]:
    """Return the notes that :func:`encode_notes` wrote.

    Raises:
        Unreadable: *text* has no such notes.

    """
    if text is None:
        return ()
    with meaning(_NOTES):
        notes: tuple[RunNote, ...] = from_plain(tuple[runs.RunNote, ...], json.loads(text), _NOTES)
    return notes


# ---- the kernel's limits, checked at submit --------------------------------------------------------------------------

# They are those of execve(2) on Linux. Each argument, and each variable as ``NAME=VALUE``, is one string of at most 32
# pages (MAX_ARG_STRLEN). All strings together may take a quarter of the stack limit of the host that runs the job. Only
# that host knows its stack limit, so a run beyond it ends as ``refused``.

#: Most bytes of one argument, or of one variable with its name: 32 pages of the smallest size, less the final NUL.
MAX_STRING_BYTES = 32 * 4096 - 1
#: Most bytes of a path: PATH_MAX less the final NUL.
MAX_PATH_BYTES = 4095


def check_exec_limits(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
    """Check that a process can be given this command, environment and directory.

    Raises:
        BadRequest: a string or the path is too long, or a variable's name is invalid.

    """
    if any(not name or "=" in name for name in env):
        name = next(name for name in env if not name or "=" in name)
        raise BadRequest(f"{brief(name)} is no name of a variable: it must not be empty and holds no =")
    strings = (*argv, *map("=".join, env.items()))
    if not all(text.isascii() and len(text) <= MAX_STRING_BYTES for text in strings):
        _check_each(argv, env)
    if _bytes_of("the working directory", cwd) > MAX_PATH_BYTES:
        raise BadRequest(f"the working directory's path is longer than {MAX_PATH_BYTES} bytes: no process can enter it")


def _check_each(argv: Sequence[str], env: Mapping[str, str]) -> None:
    for what, text in _strings(argv, env):
        size = _bytes_of(what, text)
        if size > MAX_STRING_BYTES:
            raise BadRequest(
                f"{what} takes {size} bytes, and no process can be given more than {MAX_STRING_BYTES} in one: "
                "put it into a file"
            )


def _strings(argv: Sequence[str], env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for position, text in enumerate(argv):
        yield f"argument {position}" if position else "the program's name", text
    for name, value in env.items():
        yield f"the variable {brief(name)}", f"{name}={value}"


def _bytes_of(what: str, text: str) -> int:
    """Return the size of *text* for the kernel, in bytes. An escaped surrogate stands for one byte that is no UTF-8."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise BadRequest(f"{what} holds half a character (a lone surrogate), which no process can be given") from None
