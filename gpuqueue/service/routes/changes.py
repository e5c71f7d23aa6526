"""Routes of the group ``client.jobs`` that change jobs, and those about the caller."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gpuqueue.client.changes import Change
from gpuqueue.codec.wire import to_plain
from gpuqueue.model.access import Action, Me
from gpuqueue.model.api import Moved, MoveRequest, NoteRequest, TagRequest, Whether
from gpuqueue.model.job import Job
from gpuqueue.model.job_edit import JobEdit
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import Operations, route
from gpuqueue.service.site import body_of, site_of

router = Operations("changes")


#: The fields of a spec that an edit may change. None holds arguments or the environment.
EDITED = (
    *("mem_bytes", "gpus", "device", "placement", "time_limit_s", "signal", "name", "priority", "pool", "waits"),
    *("retries", "array", "cpus", "cpu_mem_bytes"),
)


async def _changed(
    request: Request, name: str, act: str, work: Callable[[Call], Any], detail: Mapping[str, str] | None = None
) -> Response:
    """Return the result of *work*, a change of the job *name*, for a caller who may change it.

    *detail* is what the audit log says about it.
    """

    def audited(call: Call) -> Any:
        with call.change(Action.CHANGE_JOB, act, name, owner=call.owner_of(name), detail=detail):
            return work(call)

    return await site_of(request).answer(request, audited)


@route(router, "POST", "/jobs/{name}/cancel", answer=Change)
async def cancel(request: Request, name: str) -> Response:
    """End a job, an array, or a part of one such as ``17_5-9``."""
    return await _changed(request, name, "cancel", lambda call: call.client.jobs.cancel(name))


@route(router, "POST", "/jobs/{name}/hold", answer=Change)
async def hold(request: Request, name: str) -> Response:
    """Hold a waiting job, so that it does not start."""
    return await _changed(request, name, "hold", lambda call: call.client.jobs.hold(name))


@route(router, "POST", "/jobs/{name}/release", answer=Change)
async def release(request: Request, name: str) -> Response:
    """Release a held job."""
    return await _changed(request, name, "release", lambda call: call.client.jobs.release(name))


@route(router, "POST", "/jobs/{name}/move", answer=Moved, body=MoveRequest)
async def move(request: Request, name: str) -> Response:
    """Move a waiting job before the other jobs of its user, or back."""
    front = (await body_of(request, MoveRequest)).front
    to = {"to": "the front" if front else "its place by arrival"}
    return await _changed(request, name, "move", lambda call: Moved(state=call.client.jobs.move(name, front=front)), to)


@route(router, "PATCH", "/jobs/{name}", answer=Job, body=JobEdit)
async def edit(request: Request, name: str) -> Response:
    """Change the request of a waiting job. It keeps its place."""
    wanted = await body_of(request, JobEdit)
    fields = {each: getattr(wanted, each) for each in wanted.__slots__}
    given = {each: _word(value) for each, value in to_plain(wanted).items() if value is not None}

    def audited(call: Call) -> Job:
        call.must_see_jobs()
        before = call.client.jobs.get(name)
        with call.change(Action.CHANGE_JOB, "edit", name, owner=before.spec.account, detail=given) as change:
            after = call.client.jobs.edit(name, **fields)
            change.set_detail(**differences(before.spec, after.spec))
            return call.job(after, whole=True)

    return await site_of(request).answer(request, audited)


def differences(before: JobSpec, after: JobSpec) -> dict[str, str]:
    """Return what an edit has changed: for each field the values before and after."""
    old, new = _flat(before), _flat(after)
    return {name: f"{_word(old.get(name))} -> {_word(new.get(name))}" for name in new if old.get(name) != new[name]}


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


@route(router, "POST", "/jobs/{name}/tags", body=TagRequest)
async def tag(request: Request, name: str) -> Response:
    """Add tags to a job, or remove them."""
    wanted = await body_of(request, TagRequest)
    words = {"remove" if wanted.remove else "add": " ".join(wanted.words)}
    return await _changed(
        request, name, "tag", lambda call: call.client.jobs.tag(name, *wanted.words, remove=wanted.remove), words
    )


@route(router, "PUT", "/jobs/{name}/note", body=NoteRequest)
async def note(request: Request, name: str) -> Response:
    """Set the note of a job. An empty text removes it."""
    text = (await body_of(request, NoteRequest)).text
    return await _changed(request, name, "note", lambda call: call.client.jobs.note(name, text), {"text": text})


@route(router, "GET", "/me", answer=Me)
async def me(request: Request) -> Response:
    """Return the identity of the caller."""

    def work(call: Call) -> Me:
        call.must(Action.SEE_SITE)
        return Me.of(call.caller, call.policy)

    return await site_of(request).answer(request, work)


@route(router, "GET", "/me/may-change", answer=Whether)
async def may_change(request: Request, user: str) -> Response:
    """Refuse if the caller may not change the jobs of *user*."""

    def work(call: Call) -> Whether:
        call.must(Action.SUBMIT)
        call.client.jobs.must_own(user)
        return Whether(answer=True)

    return await site_of(request).answer(request, work)
