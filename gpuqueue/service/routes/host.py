"""Routes for worker hosts, which no person may use.

A host joins this site, and later compares its settings with those of the site. Its relay delivers logs, fetches code
and gets requests. A host may name only runs of its own, and may read only the code of jobs that hold one of its
devices. Its name is that of its access token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime, timezone
from functools import partial
from typing import Annotated, Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from gpuqueue.client.remote.log_tail import NEXT
from gpuqueue.errors import BadRequest, Refused
from gpuqueue.files.blob_store import blob_store_of
from gpuqueue.files.manifest import stream_size_bytes, write_stream
from gpuqueue.model.access import Action
from gpuqueue.model.access_token import AccessToken
from gpuqueue.model.joining import SHARED, HostSettings, Joined, JoinRequest, fit
from gpuqueue.model.relay import DeliveredFile, RelayRequest, RunProgress
from gpuqueue.model.run_figures import RunFigures
from gpuqueue.service.call import Call
from gpuqueue.service.delivered import OtherOffset, ResultsFile
from gpuqueue.service.host_runs import code_of
from gpuqueue.service.relay_requests import (
    SEARCH_S,
    CommandRequest,
    FiguresRequest,
    FilesRequest,
    HostRun,
    LogRequest,
    ProgressRequest,
    TerminalRequest,
)
from gpuqueue.service.relays import MOST_POLL_S
from gpuqueue.service.responses import NotHere, TooLarge, TooSlow, answer_of
from gpuqueue.service.routes.described import OCTETS, Operations, Path, Query, operation, route
from gpuqueue.service.site import Site, answered, body_of, site_of
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import users_group
from gpuqueue.text.sanitize import brief, in_one_line
from gpuqueue.version import VERSION

T = TypeVar("T")

router = Operations("hosts", prefix="/host")
#: Most bytes of the reason of a failure.
MOST_REASON_BYTES = 4096

JobId = Annotated[int, Path(ge=1, le=2**53, description="The number of the job, also of a member of an array.")]
Token = Annotated[str, Path(description="The token of the run, as in the name of its directory.")]
#: Longest silence within a body, in seconds.
SILENCE_S = 30.0
#: Least speed of a body that is stored, in bytes per second, after the first GRACE_S seconds.
LEAST_RATE, GRACE_S = 16 * 1024, 60.0
#: Bytes that are collected before they are passed on.
PART_BYTES = 2**20


async def _as_host(request: Request, work: Callable[[Call, str], T]) -> T:
    """Return the result of *work*, which gets the call of a worker host and the host's name.

    Raises:
        NotAuthenticated: the caller is no worker host.

    """

    def checked(call: Call) -> T:
        call.must(Action.SERVE_JOBS)
        return work(call, call.caller.account)

    return await site_of(request).work(request, checked)


async def _run(request: Request, job_id: int, token: str) -> tuple[HostRun, str]:
    """Return the run with *token* of the calling host, and its user.

    Raises:
        NotHere: the host has no such run.

    """
    runs = site_of(request).host_runs

    def work(call: Call, host: str) -> tuple[HostRun, str]:
        run = HostRun(host=host, job_id=job_id, token=token)
        return run, runs.user_of(call, run)

    return await _as_host(request, work)


@route(router, "GET /jobs/{job_id}/code", answer=bytes, media_type=OCTETS)
async def job_code(request: Request, job_id: JobId) -> Response:
    """Return the code of a job that runs on this host, as the stream of a snapshot."""
    manifest = await _as_host(request, lambda call, host: code_of(call, host, job_id))
    content = write_stream(manifest, blob_store_of(site_of(request).settings).content)
    return StreamingResponse(content, headers={"Content-Length": str(stream_size_bytes(manifest))}, media_type=OCTETS)


@route(router, "PUT /runs/{job_id}/{token}/results", body=bytes)
async def deliver_results(request: Request, job_id: JobId, token: Token) -> Response:
    """Deliver the archive with the files that the job of a run asked to keep, whole. It replaces an earlier one."""
    site, (run, user) = site_of(request), await _run(request, job_id, token)
    give_back = site.results.take(run.host)
    try:
        opened = site.delivered.results(run, user)
        results = await site.on_disk(opened.__enter__)
        try:
            await _receive(request, results)
        finally:
            await site.on_disk(partial(opened.__exit__, None, None, None))
    finally:
        give_back()
    return answered(None)


async def _receive(request: Request, results: ResultsFile) -> None:
    site = site_of(request)
    results.check(int(request.headers.get("content-length", 0)))
    async for part in large_parts_of(request, least_rate=LEAST_RATE):
        await site.on_disk(partial(results.write, part))
    await site.on_disk(results.commit)


@route(router, "PUT /runs/{job_id}/{token}/results-failed", body=bytes)
async def deliver_failure(request: Request, job_id: JobId, token: Token) -> Response:
    """Say why the files that the job of a run asked to keep could not be kept: a text of at most 4 KiB."""
    site, (run, user) = site_of(request), await _run(request, job_id, token)
    reason = await _reason(request)
    await site.on_disk(lambda: site.delivered.fail_results(run, user, (reason or "").encode()))
    return answered(None)


@route(router, "PUT /runs/{job_id}/{token}/complete", body=bytes)
async def complete_logs(request: Request, job_id: JobId, token: Token) -> Response:
    """Say that a run has ended and that its logs were delivered whole. Nothing can be added to them from then on."""
    site, (run, user) = site_of(request), await _run(request, job_id, token)
    await site.on_disk(lambda: site.delivered.complete(run, user))
    return answered(None)


@route(router, "PUT /runs/{job_id}/{token}/{file}", body=bytes)
async def deliver_log(
    request: Request,
    job_id: JobId,
    token: Token,
    file: DeliveredFile,
    *,
    offset: Annotated[int, Query(ge=0, le=2**53)],
    replace: Annotated[bool, Query(description="Begin the file anew. Only with offset 0.")] = False,
) -> Response:
    """Deliver a part of a log, or of the record of its growth.

    An offset behind the end of what was delivered makes a hole. If it is before that end, the status is 409 and the
    header ``Gpuqueue-Next-Offset`` says where to go on.
    """
    if replace and offset:
        raise BadRequest("a file that begins anew begins at offset 0")
    site, content = site_of(request), await _body(request)

    def work(call: Call, host: str) -> tuple[HostRun, int]:
        run = HostRun(host=host, job_id=job_id, token=token)
        user = site.host_runs.user_of(call, run)
        return run, site.delivered.add(run, user, file, offset, content, from_start=replace)

    try:
        run, after = await _as_host(request, work)
    except OtherOffset as refusal:
        answer = answer_of(refusal)
        answer.headers[NEXT] = str(refusal.next)
        return answer
    if site.relays.terminal(run) is not None:  # somebody types there, and waits for the echo
        site.ends.wake(job_id)
    return Response(status_code=204, headers={NEXT: str(after)})


@route(router, "GET /requests", answer=tuple[RelayRequest, ...])
async def poll_requests(request: Request, timeout_s: Annotated[float, Query(ge=0, le=MOST_POLL_S)] = 20.0) -> Response:
    """Return what the service asks this host for: at once if there is something, else when there is, or an empty list.

    Each request is returned once. ``log``: somebody reads the log of the run. Send what is new now, then ``done``, and
    send what is new each 0.25 s for the next 30 s. ``files``: send an archive of the run's files as its ``content``.
    ``terminal``: pass on its ``keys`` to the terminal of the run. ``progress``: send the ``progress`` of all runs.
    ``figures``: send the ``figures`` of the run. ``exec``: pass on its ``keys`` to the socket for second commands of
    the run, and send what comes from there as its ``content``.
    """
    site, host = site_of(request), await _as_host(request, lambda _, host: host)
    found = await _unless_gone(request, site.relays.poll(host, timeout_s))
    return answered(() if found is None else found)


@route(router, "GET /requests/{request_id}/keys", answer=bytes, media_type=OCTETS)
async def poll_keys(
    request: Request,
    request_id: str,
    offset: Annotated[int, Query(ge=0, le=2**53, description="How many bytes were passed on to the terminal.")],
    timeout_s: Annotated[float, Query(ge=0, le=MOST_POLL_S)] = 20.0,
) -> Response:
    """Return what follows of what users type on the terminal of a run: at once if there is something, else when.

    They are bytes of frames, which the terminal of a run takes as they are. An answer without any comes after
    *timeout_s*. 404: nobody types there any more, and the relay leaves the terminal.
    """
    site, host = site_of(request), await _as_host(request, lambda _, host: host)
    asked = site.relays.find(host, request_id)
    if not isinstance(asked, (TerminalRequest, CommandRequest)):
        raise NotHere("nobody types on this terminal any more")
    frames = await _unless_gone(request, asked.keys.after(offset, timeout_s))
    if frames is None:
        asked.keys.left()
    return Response(frames or b"", media_type=OCTETS)


@route(router, "PUT /requests/{request_id}/progress", body=tuple[RunProgress, ...])
async def send_progress(request: Request, request_id: str) -> Response:
    """Send the progress of all runs that go on at this host and whose output shows it."""
    runs = await body_of(request, tuple[RunProgress, ...])
    (await _open(request, request_id, ProgressRequest)).found(runs)
    return answered(None)


@route(router, "PUT /requests/{request_id}/figures", body=RunFigures)
async def send_figures(request: Request, request_id: str) -> Response:
    """Send what a run of this host has used and reported so far."""
    figures = await body_of(request, RunFigures)
    (await _open(request, request_id, FiguresRequest)).found(figures)
    return answered(None)


async def _open(request: Request, request_id: str, kind: type[T]) -> T:
    """Return the request of this *kind* that the host has been asked.

    Raises:
        NotHere: nobody waits for its answer.

    """
    site, host = site_of(request), await _as_host(request, lambda _, host: host)
    found = site.relays.find(host, request_id)
    if not isinstance(found, kind):
        raise NotHere("nobody waits for this request")
    return found


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of *work*, or None if the client closes its connection before."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(until_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        leaving.cancel()
        working.cancel()


@route(router, "PUT /requests/{request_id}/content", body=bytes)
async def send_content(request: Request, request_id: str) -> Response:
    """Send what a request of the kind ``files`` or ``exec`` asks for. It goes to the client that waits for it."""
    site, host = site_of(request), await _as_host(request, lambda _, host: host)
    found = site.relays.find(host, request_id)
    if not isinstance(found, (FilesRequest, CommandRequest)):
        raise NotHere("nobody waits for this request")
    found.transfer.begin()
    try:
        async for part in parts_of(request, first_s=SEARCH_S):
            await found.transfer.send(part)
        found.transfer.finish()
    finally:
        found.transfer.fail(f"host {host} has stopped sending")
    return answered(None)


@route(router, "PUT /requests/{request_id}/done", body=bytes)
async def end_request(request: Request, request_id: str) -> Response:
    """End a request. The body is empty, or the reason why it cannot be answered: a text of at most 4 KiB."""
    site, host = site_of(request), await _as_host(request, lambda _, host: host)
    reason = await _reason(request)
    found = site.relays.find(host, request_id)
    if isinstance(found, LogRequest) and reason is None:
        await site.work(request, partial(_begin, site, found.run), is_first=False)
    if found is not None:
        site.relays.done(found, reason)
    return answered(None)


def _begin(site: Site, run: HostRun, call: Call) -> None:
    """Make the log of *run* if nothing was delivered of it: it is empty."""
    site.delivered.begin(run, site.host_runs.user_of(call, run))


async def _reason(request: Request) -> str | None:
    """Return the text in the body of *request* on one line, or None if it is empty."""
    content = await _body(request)
    if len(content) > MOST_REASON_BYTES:
        raise TooLarge(f"a reason has at most {MOST_REASON_BYTES} bytes")
    return in_one_line(content.decode(errors="replace")).strip() or None


async def _body(request: Request) -> bytes:
    """Return the body of *request*. ``PeerProtocol`` refuses one that is too large or comes too slowly."""
    return b"".join([part async for part in parts_of(request)])


async def parts_of(request: Request, *, least_rate: float = 0.0, first_s: float | None = None) -> AsyncIterator[bytes]:
    """Yield the body of *request* as it arrives, at least *least_rate* bytes per second in the long run.

    Its first part may take *first_s* seconds, by default no longer than any other. The connection does not bound these
    bodies (see :mod:`gpuqueue.service.peer_protocol`). What is not read waits in the network.

    Raises:
        TooSlow: it comes too slowly.
        BadRequest: the connection was closed before its end.

    """
    stream, size_bytes, waited_s = request.stream(), 0, 0.0
    while True:
        before_s = time.monotonic()
        most_s = SILENCE_S if size_bytes or first_s is None else first_s
        try:
            part = await asyncio.wait_for(stream.__anext__(), most_s)
        except StopAsyncIteration:
            return
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            raise TooSlow(f"nothing of the body came for {most_s:g} s") from None
        except ClientDisconnect:
            raise BadRequest("the connection was closed before the whole request arrived") from None
        waited_s += time.monotonic() - before_s
        size_bytes += len(part)
        if least_rate and waited_s > GRACE_S + size_bytes / least_rate:
            raise TooSlow(f"the body comes with less than {least_rate:g} bytes per second")
        if part:
            yield part


async def large_parts_of(request: Request, *, least_rate: float = 0.0) -> AsyncIterator[bytes]:
    """Yield what :func:`parts_of` yields, in parts of PART_BYTES or a little more; the last one may be smaller."""
    collected = bytearray()
    async for part in parts_of(request, least_rate=least_rate):
        collected += part
        if len(collected) >= PART_BYTES:
            yield bytes(collected)
            collected.clear()
    if collected:
        yield bytes(collected)


async def until_gone(request: Request) -> None:
    """Return when the client of *request* has closed its connection. The body must be read, or empty."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@operation(router, "GET /settings", may=Action.SERVE_JOBS)
def get_host_settings(call: Call) -> HostSettings:
    """Return the settings that a worker host must have in common with its site, and the time. It has no password."""
    return _settings_of(call)


@operation(router, "POST /join")
def join_site(call: Call, body: JoinRequest) -> Joined:
    """Let a worker host join this site. With the setting ``hosts_redis_url``, the answer has the store's password."""
    if body.dry_run:
        call.must(Action.SERVE_JOBS)
        return _joined(call, body)
    asked = {"host": call.caller.account, "version": body.version}
    with call.change(Action.SERVE_JOBS, "join", detail=asked):
        return _joined(call, body)


@operation(router, "POST /leave")
def leave_site(call: Call, request: Request) -> AccessToken:
    """Let a worker host leave this site: revoke its token for good. It must have stopped its workers before."""
    token_id = call.caller.token_id or ""
    with call.change(Action.SERVE_JOBS, "leave", detail={"host": call.caller.account, "token": token_id}):
        database = call.connection.database
        database.revoke_token(token_id, at=datetime.now(timezone.utc))
        found = database.find_token(token_id)
        if found is None:
            raise Refused("this host has no token: a host of the service's own machine stays")
    site_of(request).identity.forget(token_id)
    return found[0]


def _joined(call: Call, wanted: JoinRequest) -> Joined:
    """Return what the host needs.

    Raises:
        Refused: the host has another version.

    """
    settings = call.connection.settings
    if not fit(wanted.version, VERSION):
        raise Refused(
            f"this host has gpuqueue {brief(wanted.version)} and the service {VERSION}: install the same minor version"
        )
    redis_url = "" if wanted.dry_run else settings.hosts_redis_url or ""
    return Joined(settings=_settings_of(call), redis_url=redis_url, redis_ca=_certificate(settings))


def _certificate(settings: Settings) -> str | None:
    if settings.hosts_redis_ca is None:
        return None
    try:
        return settings.hosts_redis_ca.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"the service cannot read the certificate {settings.hosts_redis_ca}: {error}") from error


def _settings_of(call: Call) -> HostSettings:
    settings, token = call.connection.settings, call.caller.token_id
    found = None if token is None else call.connection.database.find_token(token)
    shared = {name: getattr(settings, name) for name in SHARED}
    return HostSettings(
        host=call.caller.account,
        version=VERSION,
        now=datetime.now(timezone.utc),
        token_expires_at=None if found is None else found[0].expires_at,
        group=users_group(),
        **{**shared, "on_partition": str(settings.on_partition)},
    )
