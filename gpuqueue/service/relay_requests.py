"""The kinds of requests to the relays of worker hosts, each with those who wait for its answer.

``relays.py`` makes them and hands them to the relays. Everything here runs in the event loop of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from gpuqueue.errors import BadRequest, GpuQueueError, HostUnreachable, Refused, ServiceUnreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.relay import RelayKind, RelayRequest, RunProgress
from gpuqueue.model.run import Run
from gpuqueue.service.responses import NotHere
from gpuqueue.service.transfers import Transfer
from gpuqueue.text.units import format_bytes

STOPPING = "the service is stopping: ask again"
#: How long keys wait until the relay has passed them on, in seconds.
KEYS_S = 5.0
#: How long a terminal stays open on which nobody types, in seconds. The next key opens it again.
IDLE_S = 60.0
#: Most bytes that wait for the relay of one run, and most of them in one answer to it.
MOST_WAITING_BYTES, MOST_PART_BYTES = 256 * 1024, 64 * 1024


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


class LogRequest:
    """A request for what is new in the log of a run. ``answer`` becomes None, or the reason why there is no answer."""

    def __init__(self, run: HostRun) -> None:
        self.run = run
        self.answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def described(self, request_id: str) -> RelayRequest:
        """Return it as its relay gets it."""
        return RelayRequest(id=request_id, kind=RelayKind.LOG, job=self.run.job_id, token=self.run.token)

    def end(self, reason: str | None) -> None:
        """Answer all readers that wait. Only the first answer counts."""
        if not self.answer.done():
            self.answer.set_result(reason)

    def stop(self) -> None:
        """End it: the service stops."""
        self.end(STOPPING)


class FilesRequest:
    """A request for the files of a run, which arrive in ``transfer``."""

    def __init__(self, run: HostRun, patterns: tuple[str, ...]) -> None:
        self.run, self.patterns = run, patterns
        self.transfer = Transfer(run.host)

    def described(self, request_id: str) -> RelayRequest:
        """Return it as its relay gets it."""
        run, patterns = self.run, self.patterns
        return RelayRequest(id=request_id, kind=RelayKind.FILES, job=run.job_id, token=run.token, patterns=patterns)

    def end(self, reason: str | None) -> None:
        """End the archive; *reason* says why it is not whole."""
        self.transfer.finish() if reason is None else self.transfer.fail(reason)

    def stop(self) -> None:
        """End it: the service stops."""
        self.end(STOPPING)


class TerminalRequest:
    """A request to pass on what users type on the terminal of a run, which is in ``keys``."""

    def __init__(self, run: HostRun, at_end: Callable[[], None]) -> None:
        self.run = run
        self.keys = TerminalKeys(run.host, at_end)

    def described(self, request_id: str) -> RelayRequest:
        """Return it as its relay gets it."""
        return RelayRequest(id=request_id, kind=RelayKind.TERMINAL, job=self.run.job_id, token=self.run.token)

    def end(self, reason: str | None) -> None:
        """End it: the run has no terminal any more, or none that can be used because of *reason*."""
        self.keys.end(None if reason is None else Refused(f"the terminal of the job cannot be used: {reason}"))

    def stop(self) -> None:
        """End it: the service stops, and users come back to the next one."""
        self.keys.end(ServiceUnreachable(STOPPING))


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
AnyRequest = LogRequest | FilesRequest | TerminalRequest | ProgressRequest


class TerminalKeys:
    """The keys for one run on *host*, as frames of its terminal's socket. It ends once, and stays so.

    The relay asks with long polls for the bytes that follow those that it has passed on. So it passes on each byte once
    and in order, and a user learns whether the keys have arrived.
    """

    def __init__(self, host: str, at_end: Callable[[], None]) -> None:
        """Begin with no keys. *at_end* is called when it ends."""
        self._host, self._at_end = host, at_end
        #: The bytes that the relay has not passed on yet, and how many came before them.
        self._waiting, self._before = bytearray(), 0
        #: Those who wait until the relay has passed on so many bytes. Their result is whether the run has a terminal.
        self._typing: list[tuple[int, asyncio.Future[bool]]] = []
        self._news = asyncio.Event()
        self._polls = 0
        self._is_over = False
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.end)

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
        self._idle.cancel()
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
