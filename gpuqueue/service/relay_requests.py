"""The kinds of requests to the relays of worker hosts, each with those who wait for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gpuqueue.errors import Refused, ServiceUnreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.relay import RelayKind, RelayRequest, RunProgress
from gpuqueue.model.run import Run
from gpuqueue.service.terminal_keys import TerminalKeys
from gpuqueue.service.transfers import Transfer

STOPPING = "the service is stopping: ask again"


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
