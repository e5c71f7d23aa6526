"""The kinds of requests to the relays of worker hosts, each with those who wait for its answer.

``relays.py`` makes them and hands them to the relays. Everything here runs in the event loop of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from gpuqueue.errors import BadRequest, GpuQueueError, HostUnreachable, NotListening, Refused, ServiceUnreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.relay import RelayKind, RelayRequest, RunProgress
from gpuqueue.model.run import Run
from gpuqueue.model.run_figures import RunFigures
from gpuqueue.service.responses import NotHere
from gpuqueue.system.forwarded_port import Messages, not_listening
from gpuqueue.text.units import format_bytes

STOPPING = "the service is stopping: ask again"
#: How long keys wait until the relay has passed them on, in seconds.
KEYS_S = 5.0
#: How long a terminal stays open on which nobody types, in seconds. The next key opens it again.
IDLE_S = 60.0
#: Most bytes that wait for the relay of one run, and most of them in one answer to it.
MOST_WAITING_BYTES, MOST_PART_BYTES = 256 * 1024, 64 * 1024
#: Most parts in memory. The relay waits while the client does not read, and the client's connection has its own bound.
MOST_PARTS = 4
#: How long the client waits for the first sign of the relay, and then for each part, in seconds.
FIRST_S, SILENCE_S = 10.0, 60.0
#: How long the first part of an archive may take, in seconds. The program that packs sends nothing while it searches
#: files, and bounds the time without progress itself.
SEARCH_S = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class HostRun:
    """A run on another host than that of the service."""

    host: str
    job_id: int
    token: str

    @classmethod
    def of(cls, run: Run) -> HostRun:
        """Return the place of *run*."""
        return cls(host=run.host, job_id=run.job_id, token=run.token)


class HostRequest(ABC):
    """A request about a run of another host."""

    kind: RelayKind
    patterns: tuple[str, ...] = ()
    port: int | None = None

    def __init__(self, run: HostRun) -> None:
        self.run = run

    def described(self, request_id: str) -> RelayRequest:
        """Return it as its relay gets it."""
        run, patterns, port = self.run, self.patterns, self.port
        return RelayRequest(
            id=request_id, kind=self.kind, job=run.job_id, token=run.token, patterns=patterns, port=port
        )

    @abstractmethod
    def end(self, reason: str | None) -> None:
        """End it. Only the first end counts; *reason* says why there is no answer, or not all of it."""

    def stop(self) -> None:
        """End it: the service stops."""
        self.end(STOPPING)


class LogRequest(HostRequest):
    """A request for what is new in the log of a run. ``answer`` becomes None, or the reason why there is no answer."""

    kind = RelayKind.LOG

    def __init__(self, run: HostRun) -> None:
        super().__init__(run)
        self.answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def end(self, reason: str | None) -> None:
        """Answer all readers that wait. Only the first answer counts."""
        if not self.answer.done():
            self.answer.set_result(reason)


class FiguresRequest(HostRequest):
    """A request for the figures of a run so far. ``answer`` becomes None if there are none, or nobody answers."""

    kind = RelayKind.FIGURES

    def __init__(self, run: HostRun) -> None:
        super().__init__(run)
        self.answer: asyncio.Future[RunFigures | None] = asyncio.get_running_loop().create_future()

    def found(self, figures: RunFigures | None) -> None:
        """Note the answer. Only the first one counts."""
        if not self.answer.done():
            self.answer.set_result(figures)

    def end(self, _reason: str | None = None) -> None:
        """End it without an answer."""
        self.found(None)


class FilesRequest(HostRequest):
    """A request for the files of a run, which arrive in ``transfer``."""

    kind = RelayKind.FILES

    def __init__(self, run: HostRun, patterns: tuple[str, ...]) -> None:
        super().__init__(run)
        self.patterns, self.transfer = patterns, Transfer(run.host)

    def end(self, reason: str | None) -> None:
        """End the archive; *reason* says why it is not whole."""
        self.transfer.finish() if reason is None else self.transfer.fail(reason)


class TerminalRequest(HostRequest):
    """A request to pass on what users type on the terminal of a run, which is in ``keys``."""

    kind = RelayKind.TERMINAL

    def __init__(self, run: HostRun, at_end: Callable[[], None]) -> None:
        super().__init__(run)
        self.keys = TerminalKeys(run.host, at_end)

    def end(self, reason: str | None) -> None:
        """End it: the run has no terminal any more, or none that can be used because of *reason*."""
        self.keys.end(None if reason is None else Refused(f"the terminal of the job cannot be used: {reason}"))

    def stop(self) -> None:
        """End it: the service stops, and users come back to the next one."""
        self.keys.end(ServiceUnreachable(STOPPING))


class CommandRequest(HostRequest):
    """A request to pass on the input and output of a second command in a run: ``keys`` one way, ``transfer`` back."""

    kind = RelayKind.EXEC

    def __init__(self, run: HostRun, at_end: Callable[[], None]) -> None:
        super().__init__(run)
        self.transfer = Transfer(run.host)
        self.keys = TerminalKeys(run.host, at_end, ends_idle=False)

    def end(self, reason: str | None) -> None:
        """End it; *reason* says why its output is not whole."""
        self.transfer.finish() if reason is None else self.transfer.fail(reason)
        self.keys.end()


class PortRequest(HostRequest):
    """A request for a connection to *port* of a run. ``connected`` becomes the relay's WebSocket."""

    kind = RelayKind.PORT

    def __init__(self, run: HostRun, port: int) -> None:
        super().__init__(run)
        self.port, self._not_listening = port, not_listening(port)
        self.connected: asyncio.Future[Messages] = asyncio.get_running_loop().create_future()
        #: Set once the connection is over.
        self.over = asyncio.Event()

    def fail(self, error: GpuQueueError) -> None:
        """End it: there is no connection. Only the first end counts."""
        if not self.connected.done():
            self.connected.set_exception(error)

    def end(self, reason: str | None) -> None:
        """End it: no process of the run listens there, or nobody can connect because of *reason*."""
        self.fail(NotListening(self._not_listening) if reason is None else Refused(reason))

    def stop(self) -> None:
        """End it: the service stops, and users come back to the next one."""
        self.fail(ServiceUnreachable(STOPPING))
        self.over.set()


class ProgressRequest:
    """A request for the progress of all runs of a host. ``answer`` becomes None if the relay does not answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Sequence[RunProgress] | None] = asyncio.get_running_loop().create_future()

    def described(self, request_id: str) -> RelayRequest:
        """Return it as its relay gets it."""
        return RelayRequest(id=request_id, kind=RelayKind.PROGRESS)

    def found(self, runs: Sequence[RunProgress]) -> None:
        """Note the answer. Only the first one counts."""
        if not self.answer.done():
            self.answer.set_result(runs)

    def end(self, _reason: str | None = None) -> None:
        """End it without an answer."""
        if not self.answer.done():
            self.answer.set_result(None)

    def stop(self) -> None:
        """End it: the service stops."""
        self.end()


#: Any of them.
AnyRequest = HostRequest | ProgressRequest


class TerminalKeys:
    """The keys for one run on *host*, as frames of its terminal's socket. It ends once, and stays so.

    The relay asks with long polls for the bytes that follow those that it has passed on. So it passes on each byte once
    and in order, and a user learns whether the keys have arrived.
    """

    def __init__(self, host: str, at_end: Callable[[], None], *, ends_idle: bool = True) -> None:
        """Begin with no keys. *at_end* is called when it ends: if it *ends_idle*, `IDLE_S` after the last key."""
        self._host, self._at_end = host, at_end
        #: The bytes that the relay has not passed on yet, and how many came before them.
        self._waiting, self._before = bytearray(), 0
        #: Those who wait until the relay has passed on so many bytes. Their result is whether the run has a terminal.
        self._typing: list[tuple[int, asyncio.Future[bool]]] = []
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._polls = 0
        self._is_over = False
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.end) if ends_idle else None

    # ---- for the users -----------------------------------------------------------------------------------------------

    async def type(self, frames: bytes) -> bool:
        """Have the relay pass on *frames*. Return False if the run has no terminal any more.

        Raises:
            HostUnreachable: the relay has not said that it has passed them on.
            Refused: the terminal cannot be used, or too much waits that the job has not read.

        """
        if len(self._waiting) + len(frames) > MOST_WAITING_BYTES:
            most = format_bytes(MOST_WAITING_BYTES)
            raise Refused(f"the job has not read what was typed, and at most {most} wait: type less at a time")
        loop = asyncio.get_running_loop()
        if self._idle is not None:
            self._idle.cancel()
        self._idle = loop.call_later(IDLE_S, self.end)
        self._waiting += frames
        passed_on: asyncio.Future[bool] = loop.create_future()
        self._typing.append((self._before + len(self._waiting), passed_on))
        self._news.set()
        late = loop.call_later(KEYS_S, self.end, HostUnreachable(f"host {self._host} does not answer"))
        try:
            return await passed_on
        finally:
            late.cancel()

    async def put(self, frames: bytes, most_s: float) -> bool:
        """Have the relay pass on *frames*, some time. Return False if too much waits for *most_s*.

        Raises:
            HostUnreachable: it has ended.

        """
        deadline = asyncio.get_running_loop().time() + most_s
        while len(self._waiting) + len(frames) > MOST_WAITING_BYTES and not self._is_over:
            self._room = asyncio.Event()
            try:
                await asyncio.wait_for(self._room.wait(), deadline - asyncio.get_running_loop().time())
            except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                return False
        if self._is_over:
            raise HostUnreachable(f"host {self._host} passes on no input any more")
        self._waiting += frames
        self._news.set()
        return True

    # ---- for the relay -----------------------------------------------------------------------------------------------

    async def after(self, offset: int, timeout_s: float) -> bytes:
        """Return bytes that follow the first *offset* ones, which are passed on; none after *timeout_s*.

        Raises:
            NotHere: the end has come: the relay is to leave the terminal.
            BadRequest: *offset* is not one of bytes that wait.

        """
        self._check()
        if not 0 <= offset - self._before <= len(self._waiting):
            raise BadRequest("offset is not one of the bytes that wait")
        del self._waiting[: offset - self._before]
        self._before = offset
        self._room.set()
        self._confirm()
        self._polls += 1
        poll = self._polls
        self._news.set()  # ends an earlier poll, which is that of a dead connection
        if not self._waiting:
            self._news = asyncio.Event()
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                await asyncio.wait_for(self._news.wait(), timeout_s)
        self._check()
        return bytes(self._waiting[:MOST_PART_BYTES]) if poll == self._polls else b""

    def left(self) -> None:
        """Note that the relay has closed the connection of its poll. It may have passed on what it got, or not."""
        self.end(HostUnreachable(f"host {self._host} does not answer any more"))

    # ------------------------------------------------------------------------------------------------------------------

    def end(self, error: GpuQueueError | None = None) -> None:
        """End it. Those who type now get *error*; without it, that the run has no terminal any more."""
        if self._is_over:
            return
        self._is_over = True
        if self._idle is not None:
            self._idle.cancel()
        self._room.set()
        for _, passed_on in self._typing:
            if not passed_on.done():
                passed_on.set_result(False) if error is None else passed_on.set_exception(error)
        self._typing.clear()
        self._news.set()
        self._at_end()

    def _check(self) -> None:
        if self._is_over:
            raise NotHere("nobody types on this terminal any more")

    def _confirm(self) -> None:
        for end, passed_on in self._typing:
            if end <= self._before and not passed_on.done():
                passed_on.set_result(True)
        self._typing = [each for each in self._typing if each[0] > self._before]


class Transfer:
    """A stream of bytes from the relay of a host to the client that waits for it, through a few parts in memory.

    One side sends, the other reads; either may end it at any time.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._parts: deque[bytes] = deque()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._has_begun = self._has_parts = self._is_over = False
        self._trouble: str | None = None
        self._at_end: Callable[[], None] = lambda: None

    def at_end(self, call: Callable[[], None]) -> None:
        """Have *call* called once the reader is done."""
        self._at_end = call

    # ---- the relay's side --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that the relay has begun to answer.

        Raises:
            NotHere: nobody waits any more, or it has begun before.

        """
        if self._is_over or self._has_begun:
            raise NotHere("nobody waits for this request")
        self._has_begun = True
        self._news.set()

    async def send(self, part: bytes) -> None:
        """Pass *part* on. Wait while the client does not read.

        Raises:
            NotHere: the client has gone.

        """
        while len(self._parts) >= MOST_PARTS and not self._is_over:
            self._room.clear()
            await self._room.wait()
        if self._is_over:
            raise NotHere("nobody waits for this request any more")
        self._parts.append(part)
        self._has_parts = True
        self._news.set()

    def finish(self) -> None:
        """Note that all parts were sent."""
        self._is_over = True
        self._wake()

    def fail(self, reason: str) -> None:
        """End the stream before its end, unless it is over."""
        if not self._is_over:
            self._trouble = reason
            self.finish()

    # ---- the client's side -------------------------------------------------------------------------------------------

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts as they arrive.

        Raises:
            NotHere: the relay has failed, or does not answer.

        """
        while True:
            if self._parts:
                part = self._parts.popleft()
                self._room.set()
                yield part
            elif self._trouble is not None:
                raise NotHere(self._trouble)
            elif self._is_over:
                return
            else:
                await self._wait()

    async def close(self) -> None:
        """End the stream: the client needs no more of it."""
        self._parts.clear()
        self.fail("the client has gone")
        self._at_end()

    # ------------------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        self._news.clear()
        had_begun = self._has_begun
        most_s = SILENCE_S if self._has_parts else SEARCH_S if had_begun else FIRST_S
        try:
            await asyncio.wait_for(self._news.wait(), most_s)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            self.fail(f"host {self._host} {'has stopped sending' if had_begun else 'does not answer'}")

    def _wake(self) -> None:
        self._news.set()
        self._room.set()
