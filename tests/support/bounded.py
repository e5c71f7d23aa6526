"""Waits for a condition, with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_TICK = threading.Event()


def until(condition: Callable[[], T], *, timeout_s: float = 60.0, what: str = "the condition") -> T:
    """Return the first truthy value of *condition*; fail after *timeout_s*."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s} s; last value: {value!r}")
        _TICK.wait(0.01)
