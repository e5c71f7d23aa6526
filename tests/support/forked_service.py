"""Starts the real service in a fork of a process that has imported it already, which saves most of a start.

A fork has its own environment, signals and exit code like any process. Under coverage each service is an interpreter of
its own instead, because the lines of a fork that is killed are not counted.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

#: Longest time until a service accepts connections, in seconds.
START_S = 60
TOKEN_SERVICE = Path(__file__).with_name("token_service.py")
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["gpuqueue.service.server", "gpuqueue.service.identity.site_identity"])


class ServiceProcess(Protocol):
    """What :class:`subprocess.Popen` and :class:`ForkedService` have in common."""

    @property
    def pid(self) -> int:
        """The process id."""

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""

    def kill(self) -> None:
        """End it with SIGKILL."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal."""


def start(words: Sequence[str], environ: Mapping[str, str], errors: Path) -> ServiceProcess:
    """Start token_service.py with *words* and wait until it accepts connections. *errors* gets its standard error."""
    return _interpreter(words, environ, errors) if _is_measured() else ForkedService(words, environ, errors)


class ForkedService:
    """The service in a fork."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], errors: Path) -> None:
        reads, writes = _CONTEXT.Pipe(duplex=False)
        with reads:
            what = (list(words), dict(environ), str(errors), writes)
            self._process = _CONTEXT.Process(target=_become, args=what, daemon=True)
            self._process.start()
            writes.close()
            assert reads.poll(START_S), "the service did not start"
            try:
                reads.recv()
            except EOFError:
                raise AssertionError(errors.read_text()) from None

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("service", timeout or 0)
        return self._process.exitcode

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()

    def send_signal(self, number: int, /) -> None:
        """Send a signal."""
        if self.poll() is None:
            os.kill(self.pid, signal.Signals(number))


def _become(words: Sequence[str], environ: Mapping[str, str], errors: str, writes: Connection) -> None:
    """Be the service, in the fork."""
    import token_service  # noqa: PLC0415 - the tests themselves do without the libraries of the service

    os.environ.clear()
    os.environ.update(environ)
    with open(errors, "ab", buffering=0) as log, open(os.devnull, "r+b", buffering=0) as nothing:  # noqa: PTH123 - paths of the parent
        for number, source in enumerate((nothing, nothing, log)):
            os.dup2(source.fileno(), number)

    def ready() -> None:
        writes.send(True)
        writes.close()

    token_service.main(words, ready)


def _interpreter(words: Sequence[str], environ: Mapping[str, str], errors: Path) -> subprocess.Popen[bytes]:
    """Start the service as an interpreter of its own."""
    command = [sys.executable, str(TOKEN_SERVICE), *words]
    with errors.open("ab") as log:
        process = subprocess.Popen(command, env=dict(environ), stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    with process.stdout as out:
        assert b"ready\n" == out.readline(), errors.read_text()
    return process


def _is_measured() -> bool:
    """Return whether coverage counts lines in this process and in those that it starts."""
    coverage = sys.modules.get("coverage")
    return coverage is not None and coverage.Coverage.current() is not None
