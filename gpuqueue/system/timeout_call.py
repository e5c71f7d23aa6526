"""Calls a function in a thread with a time limit, for operations that may hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from gpuqueue.errors import GpuQueueError

T = TypeVar("T")


class Unseen(GpuQueueError):
    """The call failed or timed out; the message says why. ``cause`` is the exception that it raised, if any."""

    def __init__(self, why: str, cause: Exception | None = None) -> None:
        super().__init__(why)
        self.cause = cause


class Look(Generic[T]):
    """Calls *ask* in a thread of its own, which starts at once. The time limit is *limit_s* seconds from then on.

    If the call hangs (on a dead network disk or in a driver), so does the thread. It is a daemon thread, so it does not
    keep the process alive.
    """

    def __init__(self, ask: Callable[[], T], limit_s: float) -> None:
        self._ask = ask
        self._limit_s = limit_s
        self._began_s = time.monotonic()
        self._answer: T
        self._error: Exception | None = None
        self._back = threading.Event()
        threading.Thread(target=self._run, name="gpuqueue-look", daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except Exception as error:  # noqa: BLE001 - any exception is passed to the caller
            self._error = error
        self._back.set()

    def seen(self) -> T:
        """Wait for the result until the time limit, and return it.

        Raises:
            Unseen: the function raised an exception, or did not return in time.

        """
        left_s = self._began_s + self._limit_s - time.monotonic()
        if not self._back.wait(max(0.0, left_s)):
            raise Unseen(f"no answer within {self._limit_s:g} s")
        if isinstance(self._error, GpuQueueError):
            raise Unseen(str(self._error), self._error)
        if isinstance(self._error, OSError):
            raise Unseen(_reported(self._error), self._error)
        if self._error is not None:
            raise Unseen(f"{type(self._error).__name__}: {self._error}", self._error)
        return self._answer


def _reported(error: OSError) -> str:
    return f"{error.strerror or error}: {error.filename}" if error.filename else str(error.strerror or error)
