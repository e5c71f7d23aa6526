"""Calls a function in another thread with a time limit, for operations that may hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from gpuqueue.errors import GpuQueueError

T = TypeVar("T")


class CallFailed(GpuQueueError):
    """The call failed or timed out; the message says why. ``cause`` is the exception that it raised, if any."""

    def __init__(self, why: str, cause: Exception | None = None) -> None:
        super().__init__(why)
        self.cause = cause


def start_thread(run: Callable[[], None]) -> None:
    """Run *run* in a daemon thread of its own, which does not keep the process alive if the call hangs."""
    threading.Thread(target=run, name="gpuqueue-timed-call", daemon=True).start()


class TimedCall(Generic[T]):
    """One call of *function*, which *start* passes to another thread at once. The time limit counts from then on."""

    def __init__(
        self, function: Callable[[], T], limit_s: float, start: Callable[[Callable[[], None]], None] = start_thread
    ) -> None:
        self._function = function
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        self._answer: T
        self._error: Exception | None = None
        self._done = threading.Event()
        self._given_up = False
        start(self._run)

    def _run(self) -> None:
        try:
            if not self._given_up:  # it may have waited behind another call of its thread
                self._answer = self._function()
        except Exception as error:  # noqa: BLE001 - any exception is passed to the caller
            self._error = error
        self._done.set()

    @property
    def done(self) -> bool:
        """Return whether the function has returned or raised an exception."""
        return self._done.is_set()

    def wait(self) -> T:
        """Wait for the result until the time limit, and return it. An exception of the function is raised here.

        Raises:
            CallFailed: the function did not return in time.

        """
        left_s = self._began_s + self._limit_s - time.monotonic()
        if not self._done.wait(max(0.0, left_s)):
            self._given_up = True
            raise CallFailed(f"no answer within {self._limit_s:g} s")
        if self._error is not None:
            raise self._error
        return self._answer

    def result(self) -> T:
        """Wait for the result until the time limit, and return it.

        Raises:
            CallFailed: the function raised an exception, or did not return in time.

        """
        try:
            return self.wait()
        except Exception as error:
            if error is not self._error or isinstance(error, CallFailed):  # a call within this one has said why
                raise
            raise CallFailed(_reported(error), error) from error


def _reported(error: Exception) -> str:
    if isinstance(error, GpuQueueError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename}" if error.filename else str(error.strerror or error)
    return f"{type(error).__name__}: {error}"
