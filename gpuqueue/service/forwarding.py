"""Carries connections to ports of running jobs over WebSockets: for the owner of a job, and to a host that has joined.

A connection goes on only while the job runs and its proof is valid. :mod:`gpuqueue.system.forwarded_port` has the
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from gpuqueue.client import forward
from gpuqueue.client.run_logs import own_log
from gpuqueue.errors import BadRequest, GpuQueueError, Unreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.access import Action
from gpuqueue.service.relay_requests import HostRun, PortRequest
from gpuqueue.service.responses import NotHere, answer_of
from gpuqueue.system.forwarded_port import connect_and_carry, first_of, relay

if TYPE_CHECKING:
    from gpuqueue.service.call import Call
    from gpuqueue.service.site import Site

log = logging.getLogger(__name__)

#: Time between two checks whether the job still runs and the proof is still valid, in seconds.
CHECK_S = 2.0
#: The paths of these WebSockets.
JOB_PATH, HOST_PATH = "/jobs/{name}/ports/{port}", "/host/requests/{request_id}/port"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where a port is: at an address of this machine, or on another host."""

    account: str
    where: str | HostRun


class _Socket:
    """A WebSocket of Starlette as one end of a connection."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> bytes | str | None:
        try:
            message = await self._websocket.receive()
        except RuntimeError:  # it is closed already
            return None
        if message["type"] == "websocket.disconnect":
            return None
        content: bytes | str | None = message.get("bytes")
        return message.get("text") if content is None else content

    async def send(self, message: bytes | str) -> None:
        try:
            if isinstance(message, bytes):
                await self._websocket.send_bytes(message)
            else:
                await self._websocket.send_text(message)
        except (RuntimeError, WebSocketDisconnect) as error:
            raise ConnectionResetError from error

    async def close(self) -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it is closed already
            await self._websocket.close()


def _place(name: str, port: int, call: Call) -> _Place:
    """Return where the port of a job is. The caller's right and the record come first.

    Raises:
        Forbidden: the job is another account's.
        NotListening: no process of it listens there. On another host only its relay knows that.

    """
    record = call.client.jobs.newest(name)
    job, settings = record.job, call.connection.settings
    detail = {"port": str(port)}
    call.change_again(Action.FORWARD, "forward", job.label, job.spec.account, detail=detail)
    run = forward.running(record)
    if own_log(settings, run) is None:
        return _Place(account=call.account.name, where=HostRun.of(run))
    return _Place(account=call.account.name, where=forward.address_of(settings, run, port))


async def _serve_client(websocket: WebSocket) -> None:
    """Carry a connection of a person to the port of a job, whose name and number are in the path."""
    site: Site = websocket.app.state.site
    name, port = websocket.path_params["name"], websocket.path_params["port"]
    try:
        if not 1 <= port <= forward.MAX_PORT:
            raise BadRequest(f"there is no port {port}: they are 1 to {forward.MAX_PORT}")
        place = await site.work(websocket, partial(_place, name, port))
        give_back = site.forwarded.take(place.account)
    except GpuQueueError as error:
        await websocket.send_denial_response(answer_of(error))
        return
    try:
        await _carried(websocket, site, place, port, name)
    except GpuQueueError as error:
        await websocket.send_denial_response(answer_of(error))
    finally:
        give_back()


async def _carried(websocket: WebSocket, site: Site, place: _Place, port: int, name: str) -> None:
    client = _Socket(websocket)
    over: asyncio.Event | None = None
    try:
        if isinstance(place.where, HostRun):
            request, host = await site.relays.port(place.where, port)
            over, carrying = request.over, relay(client, host)
        else:
            carrying = connect_and_carry(client, place.where, port)
        await websocket.accept()
        await first_of(carrying, _until_refused(websocket, site, name), site.closing.wait())
        await client.close()
    finally:
        if over is not None:
            over.set()


async def _until_refused(websocket: WebSocket, site: Site, name: str) -> None:
    """Return when the job has ended, or the caller may not reach its ports any more."""

    def check(call: Call) -> bool:
        job = call.client.jobs.get(name)
        return job.state.is_active and call.may(Action.FORWARD, job.spec.account)

    while True:
        await asyncio.sleep(CHECK_S)
        try:
            if not await site.work(websocket, check, is_first=False):
                return
        except Unreachable as error:  # nobody can say now whether the job runs
            log.debug("the job of a forwarded connection cannot be checked: %s", error)
        except GpuQueueError:
            return


def _host(call: Call) -> str:
    """Return the name of the worker host that calls."""
    call.must(Action.SERVE_JOBS)
    return call.caller.account


async def _serve_host(websocket: WebSocket) -> None:
    """Take the connection that the relay of a host has made for a request, until it is over."""
    site: Site = websocket.app.state.site
    try:
        host = await site.work(websocket, _host)
        found = site.relays.find(host, websocket.path_params["request_id"])
        if not isinstance(found, PortRequest) or found.connected.done():
            raise NotHere("nobody waits for this connection any more")
    except GpuQueueError as error:
        await websocket.send_denial_response(answer_of(error))
        return
    await websocket.accept()
    socket = _Socket(websocket)
    if not found.connected.done():
        found.connected.set_result(socket)
        await found.over.wait()
    await socket.close()


def routes(prefix: str) -> list[WebSocketRoute]:
    """Return the routes of the WebSockets below *prefix*."""
    job_path = JOB_PATH.replace("{port}", "{port:int}")
    return [WebSocketRoute(prefix + job_path, _serve_client), WebSocketRoute(prefix + HOST_PATH, _serve_host)]
