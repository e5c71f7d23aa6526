"""Requests to the relays of worker hosts: for logs, files and progress of their runs, and to pass on what users type.

A relay is a process of a worker host, which this service cannot call. It asks for requests with long polls, and answers
each with a request of its own. All of it is in memory: a restart of the service loses the requests, and the clients ask
again. Everything here runs in the event loop of the service.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from typing import TypeVar

from gpuqueue.errors import HostUnreachable, ServiceUnreachable
from gpuqueue.model.relay import RelayRequest
from gpuqueue.model.run_figures import RunFigures
from gpuqueue.service.relay_requests import (
    STOPPING,
    AnyRequest,
    CommandRequest,
    FiguresRequest,
    FilesRequest,
    HostRun,
    LogRequest,
    PortRequest,
    ProgressRequest,
    TerminalRequest,
    Transfer,
)
from gpuqueue.service.responses import NotHere
from gpuqueue.system.forwarded_port import Messages

#: Longest long poll of a relay, in seconds, and most of them at a time for one host. The oldest one ends first.
MOST_POLL_S, MOST_POLLS = 60.0, 4
#: Most open requests to one host. More are refused.
MOST_REQUESTS = 256
#: How long the readers of a log wait for its relay, in seconds.
LOG_S = 5.0
#: How long a relay may take to connect to a port of a run, in seconds.
PORT_S = 5.0
#: How long a log counts as delivered while its run goes on, in seconds: as long as a relay waits between two parts.
FRESH_S = 0.25
#: How long a host that has not answered is not waited for, in seconds. Its next long poll ends that.
SILENT_S = 20.0
#: How long a host counts as one with a relay after its last long poll, in seconds.
POLLED_S = 5.0
#: Most runs, and most hosts, of which the time of the last answer is kept.
MOST_KEPT = 10_000

T = TypeVar("T")


class _Host:
    """The requests to one host that no relay has taken yet, and the long polls that wait for one."""

    def __init__(self) -> None:
        self.waiting: OrderedDict[str, AnyRequest] = OrderedDict()
        #: Those that a relay has taken and not answered.
        self.taken: dict[str, AnyRequest] = {}
        self.polls: list[asyncio.Event] = []

    def find(self, request_id: str) -> AnyRequest | None:
        return self.taken.get(request_id) or self.waiting.get(request_id)

    def drop(self, request_id: str) -> None:
        self.waiting.pop(request_id, None)
        self.taken.pop(request_id, None)

    def wake(self) -> None:
        """Wake the newest poll: an older one may be that of a connection which is dead."""
        if self.polls:
            self.polls[-1].set()

    @property
    def is_unused(self) -> bool:
        return not (self.waiting or self.taken or self.polls)


class Relays:
    """The open requests to all hosts."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}
        self._is_closed = False
        #: When the log of a run was last delivered, and when a host did not answer, on the monotonic clock.
        self._delivered_s: OrderedDict[HostRun, float] = OrderedDict()
        self._silent_s: OrderedDict[str, float] = OrderedDict()
        #: When the last long poll of a host has ended.
        self._polled_s: OrderedDict[str, float] = OrderedDict()

    # ---- for the readers ---------------------------------------------------------------------------------------------

    async def log(self, run: HostRun, *, goes_on: bool) -> str | None:
        """Have the relay send what is new in the log of *run*. Return None when it has, or the reason why it has not.

        A run that *goes_on* needs no request if its log was delivered just now.
        """
        now_s = time.monotonic()
        if goes_on and now_s - self._delivered_s.get(run, -FRESH_S) < FRESH_S:
            return None
        trouble = self._trouble(run.host)
        if trouble is not None:
            return trouble
        host = self._hosts.setdefault(run.host, _Host())
        # A request that a relay has taken does not count: the relay may have read the log before its last lines.
        found = next((each for each in host.waiting.values() if isinstance(each, LogRequest) and each.run == run), None)
        if found is not None:
            return await asyncio.shield(found.answer)
        asked = LogRequest(run)
        request_id = self._add(run.host, asked)
        loop = asyncio.get_running_loop()
        late = loop.call_later(LOG_S, self._is_late, run.host, asked)

        def end(_: asyncio.Future[str | None]) -> None:
            late.cancel()
            self._drop(run.host, request_id)

        asked.answer.add_done_callback(end)
        return await asyncio.shield(asked.answer)

    async def figures(self, run: HostRun) -> RunFigures | None:
        """Return the figures of *run* so far, None if its host has none or does not answer in time."""
        if self._trouble(run.host) is not None:
            return None
        asked = FiguresRequest(run)
        request_id = self._add(run.host, asked)
        late = asyncio.get_running_loop().call_later(LOG_S, asked.end)
        try:
            return await asked.answer
        finally:
            late.cancel()
            self._drop(run.host, request_id)

    def files(self, run: HostRun, patterns: tuple[str, ...]) -> Transfer:
        """Ask for the files of *run*. The caller reads them, and closes the transfer in any case.

        Raises:
            NotHere: the host does not answer, or has too many requests.

        """
        trouble = self._trouble(run.host)
        if trouble is not None:
            raise NotHere(trouble)
        asked = FilesRequest(run, patterns)
        request_id = self._add(run.host, asked)
        asked.transfer.at_end(lambda: self._drop(run.host, request_id))
        return asked.transfer

    async def type(self, run: HostRun, frames: bytes) -> bool:
        """Have the relay pass on *frames* to the terminal of *run*. Return False if the run has none.

        Raises:
            HostUnreachable: the host does not answer. Whether the job gets the keys is unknown.
            ServiceUnreachable: the service stops.
            Refused: the terminal cannot be used.

        """
        if self._is_closed:
            raise ServiceUnreachable(STOPPING)
        found = self.terminal(run)
        if found is None:
            trouble = self._trouble(run.host)
            if trouble is not None:
                raise HostUnreachable(trouble)
            request_id = secrets.token_hex(16)
            found = TerminalRequest(run, lambda: self._drop(run.host, request_id))
            self._add(run.host, found, request_id)
        try:
            return await found.keys.type(frames)
        except HostUnreachable:
            self._note_silence(run.host)
            raise

    def command(self, run: HostRun) -> CommandRequest:
        """Ask for a second command in *run*. The caller puts its request into the keys, and ends it in any case.

        Raises:
            HostUnreachable: the host does not answer, or has too many requests.

        """
        trouble = self._trouble(run.host)
        if trouble is not None:
            raise HostUnreachable(trouble)
        request_id = secrets.token_hex(16)
        made = CommandRequest(run, lambda: self._drop(run.host, request_id))
        self._add(run.host, made, request_id)
        return made

    async def port(self, run: HostRun, port: int) -> tuple[PortRequest, Messages]:
        """Have the relay make a connection to *port* of *run*. The caller sets ``over`` in any case.

        Raises:
            HostUnreachable: the host does not answer.
            ServiceUnreachable: the service stops.
            NotListening: no process of the run listens there.
            Refused: it cannot be used.

        """
        if self._is_closed:
            raise ServiceUnreachable(STOPPING)
        trouble = self._trouble(run.host)
        if trouble is not None:
            raise HostUnreachable(trouble)
        wanted = PortRequest(run, port)
        request_id = self._add(run.host, wanted)
        late = asyncio.get_running_loop().call_later(PORT_S, wanted.fail, HostUnreachable(silence_of(run.host)))
        try:
            return wanted, await wanted.connected
        except HostUnreachable:
            self._note_silence(run.host)
            raise
        finally:
            late.cancel()
            self._drop(run.host, request_id)

    def terminal(self, run: HostRun) -> TerminalRequest | None:
        """Return the open terminal of *run*, or None if nobody types on it now."""
        host = self._hosts.get(run.host)
        known = () if host is None else (*host.taken.values(), *host.waiting.values())
        return next((each for each in known if isinstance(each, TerminalRequest) and each.run == run), None)

    def progress(self, name: str) -> ProgressRequest | None:
        """Ask for the progress of all runs of the host *name*. Return None if it has no relay that answers.

        The caller ends the request in any case.
        """
        host = self._hosts.get(name)
        is_there = host is not None and bool(host.polls)
        is_there = is_there or time.monotonic() - self._polled_s.get(name, -POLLED_S) < POLLED_S
        if not is_there or self._trouble(name) is not None:
            return None
        asked = ProgressRequest()
        request_id = self._add(name, asked)
        asked.answer.add_done_callback(lambda _: self._drop(name, request_id))
        return asked

    # ---- for the relays ----------------------------------------------------------------------------------------------

    async def poll(self, name: str, timeout_s: float) -> tuple[RelayRequest, ...]:
        """Return the requests to the host *name*, or none after *timeout_s*. Each request is returned once."""
        self._silent_s.pop(name, None)
        host, woken = self._hosts.setdefault(name, _Host()), asyncio.Event()
        host.polls.append(woken)
        if len(host.polls) > MOST_POLLS:
            host.polls.pop(0).set()
        try:
            if not (host.waiting or self._is_closed):
                await asyncio.wait({asyncio.ensure_future(woken.wait())}, timeout=timeout_s)
            return _taken(host) if woken in host.polls and not self._is_closed else ()
        finally:
            woken.set()  # also ends the task that waits for it
            if woken in host.polls:
                host.polls.remove(woken)
            if host.waiting:  # this poll was woken and its client has gone
                host.wake()
            _note_time(self._polled_s, name)
            self._forget(name)

    def find(self, name: str, request_id: str) -> AnyRequest | None:
        """Return an open request to the host *name*, or None if nobody waits for it."""
        host = self._hosts.get(name)
        return None if host is None else host.find(request_id)

    def done(self, request: AnyRequest, reason: str | None) -> None:
        """End *request*; *reason* says why the relay could not do what was asked, None that it did."""
        if reason is None and isinstance(request, LogRequest):
            _note_time(self._delivered_s, request.run)
        request.end(reason)

    def close(self) -> None:
        """End all requests and long polls: the service stops."""
        self._is_closed = True
        for host in list(self._hosts.values()):
            for each in [*host.waiting.values(), *host.taken.values()]:
                each.stop()
            for poll in host.polls:
                poll.set()

    # ------------------------------------------------------------------------------------------------------------------

    def _trouble(self, name: str) -> str | None:
        """Return why the host *name* is asked nothing now."""
        if self._is_closed:
            return STOPPING
        if time.monotonic() - self._silent_s.get(name, -SILENT_S) < SILENT_S:
            return silence_of(name)
        host = self._hosts.get(name)
        if host is not None and len(host.waiting) + len(host.taken) >= MOST_REQUESTS:
            return f"too many requests wait for host {name}: ask again later"
        return None

    def _add(self, name: str, request: AnyRequest, request_id: str | None = None) -> str:
        host, request_id = self._hosts.setdefault(name, _Host()), request_id or secrets.token_hex(16)
        host.waiting[request_id] = request
        host.wake()
        return request_id

    def _is_late(self, name: str, request: LogRequest) -> None:
        self._note_silence(name)
        request.end(silence_of(name))

    def _note_silence(self, name: str) -> None:
        """Note that the host *name* has not answered, unless its relay waits for requests now."""
        host = self._hosts.get(name)
        if host is None or not host.polls:
            _note_time(self._silent_s, name)

    def _drop(self, name: str, request_id: str) -> None:
        host = self._hosts.get(name)
        if host is not None:
            host.drop(request_id)
            self._forget(name)

    def _forget(self, name: str) -> None:
        host = self._hosts.get(name)
        if host is not None and host.is_unused:
            del self._hosts[name]


def silence_of(name: str) -> str:
    """Return the message about a host whose relay does not answer."""
    return f"host {name} does not answer"


def _taken(host: _Host) -> tuple[RelayRequest, ...]:
    """Return the requests of *host* that no relay has taken yet. From now on they are taken."""
    found = tuple(each.described(request_id) for request_id, each in host.waiting.items())
    host.taken.update(host.waiting)
    host.waiting.clear()
    return found


def _note_time(times: OrderedDict[T, float], name: T) -> None:
    """Note the time for *name*, and forget the oldest if there are too many."""
    times[name] = time.monotonic()
    times.move_to_end(name)
    if len(times) > MOST_KEPT:
        times.popitem(last=False)
