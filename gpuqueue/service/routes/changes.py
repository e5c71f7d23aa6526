"""Routes of the group ``client.jobs`` that change jobs, and those about the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from gpuqueue.client.changes import Change
from gpuqueue.model.access import Action, Me
from gpuqueue.model.api import Moved, MoveRequest, NoteRequest, TagRequest, Whether
from gpuqueue.model.job import Job
from gpuqueue.model.job_edit import JobEdit
from gpuqueue.service.call import Call
from gpuqueue.service.routes.described import route
from gpuqueue.service.site import body_of, site_of

router = APIRouter(tags=["changes"])


async def _changed(request: Request, name: str, act: str, work: Callable[[Call], Any]) -> Response:
    """Return the result of *work*, a change of the job *name*, for a caller who may change it."""

    def audited(call: Call) -> Any:
        with call.change(Action.CHANGE_JOB, act, name, owner=call.owner_of(name)):
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
    return await _changed(request, name, "move", lambda call: Moved(state=call.client.jobs.move(name, front=front)))


@route(router, "PATCH", "/jobs/{name}", answer=Job, body=JobEdit)
async def edit(request: Request, name: str) -> Response:
    """Change the request of a waiting job. It keeps its place."""
    wanted = await body_of(request, JobEdit)
    fields = {each: getattr(wanted, each) for each in wanted.__slots__}
    return await _changed(
        request, name, "edit", lambda call: call.job(call.client.jobs.edit(name, **fields), whole=True)
    )


@route(router, "POST", "/jobs/{name}/tags", body=TagRequest)
async def tag(request: Request, name: str) -> Response:
    """Add tags to a job, or remove them."""
    wanted = await body_of(request, TagRequest)
    return await _changed(
        request, name, "tag", lambda call: call.client.jobs.tag(name, *wanted.words, remove=wanted.remove)
    )


@route(router, "PUT", "/jobs/{name}/note", body=NoteRequest)
async def note(request: Request, name: str) -> Response:
    """Set the note of a job. An empty text removes it."""
    text = (await body_of(request, NoteRequest)).text
    return await _changed(request, name, "note", lambda call: call.client.jobs.note(name, text))


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
