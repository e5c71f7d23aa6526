"""A look at something that may be broken: it never takes longer than its limit, and never raises a surprise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from gpuqueue.errors import GpuQueueError

T = TypeVar("T")


class Unseen(GpuQueueError):
    """A look brought nothing back; the message says why. ``cause`` is the error that ended it, if one did."""

    def __init__(self, why: str, cause: Exception | None = None) -> None:
        super().__init__(why)
        self.cause = cause


class Look(Generic[T]):
    """Asks a question in a thread of its own, from now on.

    What hangs (a dead network disk, a driver) keeps that thread for ever: it is a daemon, so it does not keep the
    process.
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
        except Exception as error:  # noqa: BLE001 - of whatever kind: it is the answer
            self._error = error
        self._back.set()

    def seen(self) -> T:
        """Return the answer, waiting for it until the limit.

        Raises:
            Unseen: the question failed, or did not come back in time.

        """
        left_s = self._began_s + self._limit_s - time.monotonic()
        if not self._back.wait(max(0.0, left_s)):
            raise Unseen(f"no answer within {self._limit_s:g} s")
        if isinstance(self._error, GpuQueueError):
            raise Unseen(str(self._error), self._error)
        if isinstance(self._error, OSError):
            raise Unseen(_told(self._error), self._error)
        if self._error is not None:
            raise Unseen(f"{type(self._error).__name__}: {self._error}", self._error)
        return self._answer


def _told(error: OSError) -> str:
    return f"{error.strerror or error}: {error.filename}" if error.filename else str(error.strerror or error)
