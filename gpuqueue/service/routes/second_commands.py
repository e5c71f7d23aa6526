"""The routes of second commands: the owner of a running job runs a command in it, and sends its input."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpuqueue.client.run_logs import own_log
from gpuqueue.client.second_command import connected_to, run_of, ticket_of
from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import Action
from gpuqueue.model.api import CommandInput, SecondCommand, Whether
from gpuqueue.model.job_spec import Account
from gpuqueue.service.call import Call
from gpuqueue.service.relay_requests import HostRun
from gpuqueue.service.responses import NotHere, StreamedFile
from gpuqueue.service.routes.described import OCTETS, Operations, route
from gpuqueue.service.second_commands import HostLine, Line, LocalLine, reason_of
from gpuqueue.service.second_commands import SecondCommand as Served
from gpuqueue.service.site import Site, answered, body_of, site_of
from gpuqueue.system import command_socket
from gpuqueue.text.sanitize import in_one_line

router = Operations("jobs")
#: How often the caller of a command that goes on is authenticated again, in seconds.
CALLER_S = 15.0
#: Most letters of the name of a program in the audit log.
MAX_PROGRAM = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class _Begin:
    """What begins a command: whose job it is in, the request as frames, and where the run is."""

    owner: Account
    label: str
    frames: bytes
    place: Path | HostRun


@route(router, "POST /jobs/{name}/exec", answer=bytes, body=SecondCommand, media_type=OCTETS)
async def run_command(request: Request, name: str) -> Response:
    """Run a second command in a running job of the caller's, and stream its output until it has ended.

    The command has the job's account, environment and directory. It ends with the run of the job, and when the
    connection is closed. The answer is a stream of frames: a letter, the length of the payload in two bytes
    (big-endian), and the payload. ``S``: the name of the command, for its input. ``O`` and ``E``: output and errors.
    ``A``: nothing has happened. ``N``: it did not start; an errno, or -1, and the reason. ``X``: its exit status,
    negative for a signal, and ``ended`` if the run has ended first.
    """
    wanted, site = await body_of(request, SecondCommand), site_of(request)
    begin = await site.work(request, lambda call: _begun(call, name, wanted))
    at_end = site.command_slots.take(begin.owner.name)
    try:
        line = await _line(site, begin)
        await line.send(begin.frames)
    except BaseException:
        at_end()
        raise
    return _CommandResponse(request, Served(line, begin.owner, begin.label), at_end)


def _begun(call: Call, name: str, wanted: SecondCommand) -> _Begin:
    record = call.client.jobs.newest(name)
    owner, label = record.job.spec.account, record.job.label
    program = in_one_line(wanted.argv[0].rpartition("/")[2])[:MAX_PROGRAM]
    with call.change(Action.EXEC, "exec", label, owner=owner, detail={"program": program}):
        run = run_of(record)
        log = own_log(call.connection.settings, run)
        frames = command_socket.request_frames(wanted, ticket_of(call.connection, record, run, wanted))
        return _Begin(owner=owner, label=label, frames=frames, place=HostRun.of(run) if log is None else log.parent)


async def _line(site: Site, begin: _Begin) -> Line:
    place = begin.place
    if isinstance(place, HostRun):
        return HostLine(site.relays.command(place))
    return await LocalLine.of(await site.on_disk(lambda: connected_to(place, begin.label)))


class _CommandResponse(StreamedFile):
    """The answer with the output of a command, which ends with it."""

    def __init__(self, request: Request, command: Served, at_end: Callable[[], None]) -> None:
        name, self._end = site_of(request).commands.add(command)
        self._at_end = at_end
        super().__init__(f"a command in job {command.label} was", _content(request, command, name), {}, OCTETS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the output, and end the command in any case."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()
            self._at_end()


async def _content(request: Request, command: Served, name: str) -> AsyncIterator[bytes]:
    """Yield the frames of *command*. A caller whose proof is not valid any more gets no more of them."""
    site, checked_s = site_of(request), time.monotonic()
    yield command_socket.frame(command_socket.NAMED, name.encode("ascii"))
    try:
        async for part in command.line.parts():
            if time.monotonic() - checked_s > CALLER_S:
                await site.work(request, lambda call: call.must(Action.EXEC, command.owner), is_first=False)
                checked_s = time.monotonic()
            yield part
    except GpuQueueError as error:
        yield command_socket.frame(command_socket.NOT_BEGUN, reason_of(error))


@route(router, "POST /commands/{name}/input", answer=Whether, body=CommandInput)
async def send_input(request: Request, name: str) -> Response:
    """Send input to a second command of the caller's: frames with the letter ``I`` (input), ``Z`` or ``W``.

    ``Z`` says that the input has ended, ``W`` has the columns and rows of the caller's terminal, two bytes each.
    ``answer`` is false if the command has not read earlier input: send the same again. Never do so otherwise.
    """
    wanted, site = await body_of(request, CommandInput), site_of(request)
    command = site.commands.find(name)
    if command is None:
        raise NotHere("the command has ended")
    owner = command.owner
    await site.work(request, lambda call: call.must(Action.EXEC, owner))
    try:
        frames = base64.b64decode(wanted.frames, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("frames must be base64") from None
    return answered(Whether(answer=await command.line.send(frames)))
