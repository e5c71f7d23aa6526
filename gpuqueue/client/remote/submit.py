"""Submits and edits over the service. What only this process knows is completed here, and the rest by the service."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuqueue.client.remote.link import WARNING, Link, error_of
from gpuqueue.client.submit import (
    SiteAnswers,
    all_queued,
    body_of,
    completed,
    environments_of,
    open_memory,
    prepared,
    unconfirmed,
)
from gpuqueue.codec.wire import to_stored
from gpuqueue.errors import Refused, ServiceUnreachable
from gpuqueue.lazy.imports import later
from gpuqueue.model import validation
from gpuqueue.model.job import Job
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.system.command_line import Travel
from gpuqueue.system.environment import given_variables, travelling

if TYPE_CHECKING:
    from gpuqueue.client import notifications
    from gpuqueue.client.memory import OpenMemory
    from gpuqueue.client.remote import devices, snapshots
    from gpuqueue.client.remote.http import Answer
    from gpuqueue.codec.wire import Plain
    from gpuqueue.model import api, job_request, times
    from gpuqueue.model.job_request import JobEdit, JobRequest
else:
    devices = later("gpuqueue.client.remote.devices")
    api = later("gpuqueue.model.api")
    job_request = later("gpuqueue.model.job_request")
    notifications = later("gpuqueue.client.notifications")
    snapshots = later("gpuqueue.client.remote.snapshots")
    times = later("gpuqueue.model.times")

#: Status of an answer that names a job which was there already.
OK = 200


def submit_request(
    link: Link,
    wanted: JobRequest,
    found: Callable[[Job], None] | None,
    note: Callable[[str], None] | None = None,
) -> Job:
    """Submit *wanted*; the service adds the account, a memory that is left open, and what it knows about devices.

    The code travels if *wanted* asks for it; if it does not say, it travels to a service on another machine (setting
    ``snapshot``). *note* is called with lines about the script, the code, its Python and the memory, *found* with a job
    that already has the *dedupe* key.
    """
    made, left_open = _made(link, wanted, note, dry=False)
    return submit_spec(link, made, found, note=note, left_open=left_open)


def spec_of(link: Link, wanted: JobRequest, note: Callable[[str], None] | None) -> JobSpec:
    """Return what :func:`submit_request` would submit. Nothing is submitted, and no code is sent."""
    made, left_open = _made(link, wanted, note, dry=True)
    body = _body(link, replace(made, snapshot=None, keep=()), left_open)
    spec, answer = link.answered("POST", "/job-specs", body, kind=JobSpec)
    warn_from(answer, note)
    return replace(
        spec, env=made.env, notifications=made.notifications, snapshot=made.snapshot, keep=made.keep
    )  # the service does not send them back


def _made(
    link: Link, wanted: JobRequest, note: Callable[[str], None] | None, *, dry: bool
) -> tuple[JobSpec, OpenMemory | None]:
    """Return the spec of *wanted* as far as this process knows it, and a memory that it leaves open."""
    site = SiteAnswers(
        uuids_of=lambda names: devices.uuids_of(link, names),
        notifications=lambda asked: notifications.parsed(asked.on_end, asked.on_fail),
        environments=lambda: _environments(link),
    )
    is_far = not link.url.startswith("unix:")
    with_code = is_far and link.settings.snapshot if wanted.snapshot is None else wanted.snapshot is not False
    travel = Travel(with_code=with_code, is_far=is_far and with_code)
    made = completed(wanted, link.settings, link.account, site, lambda: None, travel, note)
    if with_code:
        made = snapshots.sent(link, wanted, made, note, is_far=is_far, dry=dry)
    return made, None if made.placement.whole else open_memory(wanted, made)


def new_job(link: Link, wanted: JobRequest, note: Callable[[str], None] | None) -> Plain:
    """Return the body with which :func:`submit_request` submits *wanted*. Its code is sent, nothing is submitted."""
    return _body(link, *_made(link, wanted, note, dry=False))


def submit_spec(
    link: Link,
    made: JobSpec,
    found: Callable[[Job], None] | None,
    *,
    note: Callable[[str], None] | None = None,
    left_open: OpenMemory | None = None,
) -> Job:
    """Submit the spec *made*, less its account, and less its memory if that is *left_open*: the service decides it.

    *found* is called with a job that already has the *dedupe* key, *note* with a line about the memory.
    """
    return post_job(link, "/jobs", _body(link, made, left_open), found, note)


def submit_many(link: Link, requests: Sequence[JobRequest]) -> list[Job]:
    """Submit the jobs of *requests* in one request. Variables that all of them have are sent once.

    Raises:
        SubmittedInPart: some were refused.

    """
    made = prepared(lambda each: _made(link, each, None, dry=False), requests)
    bodies: list[Any] = [_body(link, *one) for one in made]
    shared = dict(set.intersection(*({*body.get("env", {}).items()} for body in bodies))) if bodies else {}
    for body in bodies:
        body["env"] = {name: value for name, value in body.get("env", {}).items() if name not in shared}
    headers = {"Idempotency-Key": os.urandom(16).hex()}
    try:
        body = {"jobs": bodies, "env": shared}
        answer, _ = link.answered("POST", "/jobs/many", body, kind=api.ManyJobs, headers=headers)
    except ServiceUnreachable as error:
        raise (unconfirmed(error) if error.is_unanswered else error) from error
    return all_queued([each.job or error_of(*_of_problem(each.problem)) for each in answer.outcomes])


def _of_problem(problem: api.Problem | None) -> tuple[str, str, int]:
    """Return the class, the words and the exit code of a refusal."""
    return ("", "", 1) if problem is None else (problem.error, problem.detail, problem.exit_code)


def _body(link: Link, made: JobSpec, left_open: OpenMemory | None) -> Plain:
    return body_of(made, left_open, link.settings.default_mem_bytes)


def retry_body(
    link: Link,
    args: Sequence[str] | None,
    env: Mapping[str, str] | Sequence[str] | None,
    changes: Mapping[str, Any],
) -> Plain:
    """Return the body of a retry. It has the environment of this process, which replaces one that was removed.

    The other fields are only there if they are set, as in :func:`edit_body`.
    """
    body = {
        "args": None if args is None else validation.words("args", args),
        "env": given_variables(env) or None,
        "fallback_env": travelling(os.environ),
        "changes": edit_body(link, job_request.JobEdit(**changes)) or None,
    }
    return {name: value for name, value in body.items() if value is not None}


def warn_from(answer: Answer, warn: Callable[[str], None] | None) -> None:
    """Call *warn* with the warning of *answer*, if it has one."""
    if warn is not None and WARNING in answer.headers:
        warn(answer.headers[WARNING])


def post_job(
    link: Link,
    path: str,
    body: Any,
    found: Callable[[Job], None] | None,
    warn: Callable[[str], None] | None = None,
) -> Job:
    """Post the request of a new job. It carries a key: sent again after a lost answer, it yields the same job.

    *found* is called if the answer is a job that already has the *dedupe* key, *warn* with the answer's warning.
    """
    headers = {"Idempotency-Key": os.urandom(16).hex()}
    try:
        job, answer = link.answered("POST", path, body, kind=Job, headers=headers)
    except ServiceUnreachable as error:
        raise (unconfirmed(error) if error.is_unanswered else error) from error
    warn_from(answer, warn)
    if answer.status == OK and found is not None:
        found(job)
    return job


def edit_body(link: Link, wanted: JobEdit) -> Plain:
    """Return *wanted* as the body of a request, with only what is set: an older service refuses fields that are new.

    What depends on this process is resolved: its host's devices, and its local time.
    """
    if wanted.device is not None:
        wanted = replace(wanted, device=devices.with_host(link, wanted.device))
    if wanted.begin is not None:
        begin = times.begin(wanted.begin)
        wanted = replace(wanted, begin="now" if begin is None else begin.isoformat())
    plain: Plain = to_stored(wanted)
    return plain


def _environments(link: Link) -> Sequence[Sequence[str] | None]:
    """Return the names of each host's environments; nothing for a token that sees no devices: the service decides."""
    try:
        return environments_of(devices.RemoteDevices(link).list())
    except Refused:
        return ()
