"""Routes of the group ``client.jobs`` that change jobs, and those about the caller."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from gpuqueue.client import notifications
from gpuqueue.client.changes import Change
from gpuqueue.codec.wire import to_plain
from gpuqueue.model.access import Action, Me
from gpuqueue.model.api import ExtendRequest, Moved, MoveRequest, NoteRequest, TagRequest, Whether
from gpuqueue.model.job import Job
from gpuqueue.model.job_request import JobEdit
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import Operations, operation

T = TypeVar("T")

router = Operations("changes")


#: The fields of a spec that an edit may change. None holds arguments or the environment.
EDITED = (
    *("mem_bytes", "gpus", "device", "placement", "time_limit_s", "signal", "name", "priority", "pool", "waits"),
    *("retries", "array", "cpus", "cpu_mem_bytes"),
)


def _changes(act: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return a decorator for a change of the job ``name``, for a caller who may change it.

    The audit log has it as *act*, and says what the body of the request asks for.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @wraps(function)
        def audited(call: Call, name: str, **body: Any) -> T:
            detail = _asked(**body) if body else None
            with call.change(Action.CHANGE_JOB, act, name, owner=call.owner_of(name), detail=detail):
                return function(call, name, **body)

        return audited

    return decorate


def _asked(body: MoveRequest | TagRequest | NoteRequest) -> dict[str, str]:
    """Return what a body asks for, in the words of the audit log."""
    if isinstance(body, MoveRequest):
        return {"to": "the front" if body.front else "its place by arrival"}
    if isinstance(body, TagRequest):
        return {"remove" if body.remove else "add": " ".join(body.words)}
    return {"text": body.text}


@operation(router, "jobs.cancel")
@_changes("cancel")
def cancel(call: Call, name: str) -> Change:
    """End a job, an array, or a part of one such as ``17_5-9``."""
    return call.client.jobs.cancel(name)


@operation(router, "jobs.hold")
@_changes("hold")
def hold(call: Call, name: str) -> Change:
    """Hold a waiting job, so that it does not start."""
    return call.client.jobs.hold(name)


@operation(router, "jobs.release")
@_changes("release")
def release(call: Call, name: str) -> Change:
    """Release a held job."""
    return call.client.jobs.release(name)


@operation(router, "jobs.move")
@_changes("move")
def move(call: Call, name: str, body: MoveRequest) -> Moved:
    """Move a waiting job before the other jobs of its user, or back."""
    return Moved(state=call.client.jobs.move(name, front=body.front))


@operation(router, "PATCH /jobs/{name}")
def edit(call: Call, name: str, body: JobEdit) -> Job:
    """Change the request of a waiting job. It keeps its place."""
    if call.account.uid != os.geteuid():
        body = notifications.anew(body)
    fields = {each: getattr(body, each) for each in body.__slots__}
    given = {each: _word(value) for each, value in to_plain(body).items() if value is not None}
    given |= {each: _targets_of(getattr(body, each)) for each in ("on_end", "on_fail") if each in given}
    call.must_see_jobs()
    before = call.client.jobs.get(name)
    with call.change(Action.CHANGE_JOB, "edit", name, owner=before.spec.account, detail=given) as change:
        after = call.client.jobs.edit(name, **fields)
        change.set_detail(**differences(before.spec, after.spec))
        return call.job(after, whole=True)


@operation(router, "jobs.extend")
def extend(call: Call, name: str, body: ExtendRequest) -> Job:
    """Raise the time limit of a job that waits or runs."""
    call.must_see_jobs()
    before = call.client.jobs.get(name)
    asked = {"time": _word(body.time)}
    with call.change(Action.CHANGE_JOB, "extend", name, owner=before.spec.account, detail=asked) as change:
        after = call.client.jobs.extend(name, body.time)
        change.set_detail(**differences(before.spec, after.spec))
        return call.job(after, whole=True)


def differences(before: JobSpec, after: JobSpec) -> dict[str, str]:
    """Return what an edit has changed: for each field the values before and after, URLs without their secrets."""
    old, new = _flat(before), _flat(after)
    found = {name: f"{_word(old.get(name))} -> {_word(new.get(name))}" for name in new if old.get(name) != new[name]}
    if before.notifications != after.notifications:
        found["notifications"] = f"{_notified(before)} -> {_notified(after)}"
    return found


def _notified(spec: JobSpec) -> str:
    return " ".join(f"{each.when}:{each.shown}" for each in spec.notifications) or "none"


def _flat(spec: JobSpec) -> dict[str, Any]:
    """Return the fields of *spec* that an edit may change, those of inner values by names such as ``waits.after``."""
    found: dict[str, Any] = {}
    for name, value in to_plain(spec).items():
        if name in EDITED:
            inner = value if isinstance(value, dict) else {"": value}
            found |= {f"{name}.{each}".rstrip("."): inner[each] for each in inner}
    return found


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _targets_of(words: str | Sequence[str]) -> str:
    """Return targets without the secrets of URLs, for the audit log."""
    return " ".join(each.shown for each in notifications.parsed(words, ()))


@operation(router, "jobs.tag")
@_changes("tag")
def tag(call: Call, name: str, body: TagRequest) -> None:
    """Add tags to a job, or remove them."""
    call.client.jobs.tag(name, *body.words, remove=body.remove)


@operation(router, "jobs.note")
@_changes("note")
def note(call: Call, name: str, body: NoteRequest) -> None:
    """Set the note of a job. An empty text removes it."""
    call.client.jobs.note(name, body.text)


@operation(router, "access.whoami", may=Action.SEE_SITE)
def me(call: Call) -> Me:
    """Return the identity of the caller."""
    return Me.of(call.caller, call.policy)


@operation(router, "jobs.must_own", may=Action.SUBMIT)
def may_change(call: Call, user: str) -> Whether:
    """Refuse if the caller may not change the jobs of *user*."""
    call.client.jobs.must_own(user)
    return Whether(answer=True)
