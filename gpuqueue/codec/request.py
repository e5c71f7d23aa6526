"""The request of a job as text. All submitters encode their requests here."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from gpuqueue.codec.arrays import array_from_plain, array_to_plain, member_from_plain, without_member
from gpuqueue.codec.parts import (
    git_from_plain,
    git_to_plain,
    notification_from_plain,
    notification_to_plain,
    placement_from_plain,
    placement_to_plain,
    retries_from_plain,
    retries_to_plain,
    signal_from_plain,
    signal_to_plain,
    waits_from_plain,
    waits_to_plain,
    window_from_plain,
    window_to_plain,
)
from gpuqueue.codec.text import VERSION, Plain, dump, meaning
from gpuqueue.errors import BadRequest
from gpuqueue.model.array import Member
from gpuqueue.model.dependencies import NO_WAITS
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job_spec import Account, JobSpec, Priority
from gpuqueue.model.placement import ANYWHERE
from gpuqueue.model.retries import NO_RETRIES
from gpuqueue.system.exec_limits import check_exec_limits
from gpuqueue.text.json_fields import Fields, loaded

#: Largest accepted spec, in bytes of JSON. The store keeps it in memory until the job has ended.
MAX_SPEC_BYTES = 1024 * 1024

_WHAT = "a job's request"
_Value = TypeVar("_Value")
_Default = TypeVar("_Default")


def encode_spec(spec: JobSpec) -> str:
    """Return *spec* as text.

    Raises:
        BadRequest: the text is larger than MAX_SPEC_BYTES, or no process could be given the command or the environment.

    """
    check_exec_limits(spec.argv, spec.env, spec.cwd)
    text = dump(_to_plain(spec))
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


def _to_plain(spec: JobSpec) -> Plain:
    return {
        "v": VERSION,
        "argv": spec.argv,
        "cwd": spec.cwd,
        "env": dict(spec.env),
        "account": {"name": spec.account.name, "uid": spec.account.uid, "host": spec.account.host},
        "mem_bytes": spec.mem_bytes,
        "gpus": spec.gpus,
        "device": spec.device.value if spec.device else None,
        "placement": _plain_of(placement_to_plain, spec.placement or None),
        "time_limit_s": spec.time_limit_s,
        "name": spec.name,
        "priority": int(spec.priority),
        "pool": spec.pool,
        "requeue": spec.requeue,
        "cap": spec.cap,
        "umask": spec.umask,
        "pty": _plain_of(window_to_plain, spec.pty),
        "script": spec.script,
        "interpreter": spec.interpreter,
        "array": _plain_of(array_to_plain, spec.array),
        "snapshot": spec.snapshot,
        "signal": _plain_of(signal_to_plain, spec.signal),
        **({"environment": spec.environment} if spec.environment is not None else {}),
        **({"keep": list(spec.keep)} if spec.keep else {}),
        **({"tags": list(spec.tags)} if spec.tags else {}),
        **({"retry_of": spec.retry_of} if spec.retry_of is not None else {}),
        **({"warm": True} if spec.warm else {}),
        **({"waits": waits_to_plain(spec.waits)} if spec.waits != NO_WAITS else {}),
        **({"retries": retries_to_plain(spec.retries)} if spec.retries != NO_RETRIES else {}),
        **({"notifications": list(map(notification_to_plain, spec.notifications))} if spec.notifications else {}),
        **({"separate_stderr": True} if spec.separate_stderr else {}),
        **({"git": git_to_plain(spec.git)} if spec.git else {}),
        **({"mem_source": spec.mem_source} if spec.mem_source is not None else {}),
        **({"probe": spec.probe} if spec.probe is not None else {}),
        **({"cpus": spec.cpus} if spec.cpus is not None else {}),
        **({"cpu_mem_bytes": spec.cpu_mem_bytes} if spec.cpu_mem_bytes is not None else {}),
        **({} if spec.expected_utilisation is None else {"expected_utilisation": spec.expected_utilisation}),
        **({"ticket": spec.ticket} if spec.ticket is not None else {}),
    }


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
    parts = without_member(text)
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
    account, env = plain.below("account", "a job's account"), plain.below("env", "a job's environment")
    with meaning(_WHAT):
        spec = JobSpec(
            argv=plain.texts("argv"),
            cwd=plain.text("cwd"),
            env=env.all_texts(),
            account=Account(name=account.text("name"), uid=account.whole("uid"), host=account.text("host")),
            mem_bytes=plain.whole("mem_bytes"),
            gpus=plain.whole("gpus"),
            device=DeviceFilter(plain.text("device")) if plain.has("device") else None,
            placement=_part(plain, "placement", placement_from_plain, ANYWHERE),
            time_limit_s=plain.number_or_none("time_limit_s"),
            name=plain.text("name"),
            priority=Priority(plain.whole("priority")),
            pool=plain.text("pool"),
            requeue=plain.flag("requeue"),
            cap=plain.flag("cap"),
            umask=plain.whole("umask"),
            warm=plain.flag("warm", default=False),
            pty=_part(plain, "pty", window_from_plain, None),
            script=plain.text_or_none("script"),
            interpreter=plain.text_or_none("interpreter"),
            environment=plain.text_or_none("environment"),
            snapshot=plain.text_or_none("snapshot"),
            keep=plain.texts("keep") if plain.has("keep") else (),
            waits=_part(plain, "waits", waits_from_plain, NO_WAITS),
            retries=_part(plain, "retries", retries_from_plain, NO_RETRIES),
            notifications=tuple(map(notification_from_plain, plain.each("notifications"))),
            array=_part(plain, "array", array_from_plain, None),
            signal=_part(plain, "signal", signal_from_plain, None),
            retry_of=plain.whole_or_none("retry_of"),
            tags=plain.texts("tags") if plain.has("tags") else (),
            separate_stderr=plain.flag("separate_stderr", default=False),
            git=_part(plain, "git", git_from_plain, None),
            mem_source=plain.text_or_none("mem_source"),
            probe=plain.text_or_none("probe"),
            cpus=plain.number_or_none("cpus"),
            cpu_mem_bytes=plain.whole_or_none("cpu_mem_bytes"),
            expected_utilisation=plain.number_or_none("expected_utilisation"),
            ticket=plain.text_or_none("ticket"),
        )
        return spec, member_from_plain(plain)


def _plain_of(to_plain: Callable[[_Value], Plain], value: _Value | None) -> Plain | None:
    return None if value is None else to_plain(value)


def _part(plain: Fields, name: str, read: Callable[[object], _Value], default: _Default) -> _Value | _Default:
    """Return the part of the request in the field *name*, or *default* if it has none."""
    return read(plain.plain(name)) if plain.has(name) else default


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
