"""Clocks. Code that needs the time takes a :class:`Clock` as an argument, so that tests can set it."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """A wall clock and a monotonic clock. Tests use one that they advance themselves."""

    def now(self) -> datetime:
        """Return the wall-clock time as an aware datetime in UTC. It may jump."""

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment. They never decrease."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the wall-clock time as an aware datetime in UTC."""
        return datetime.now(timezone.utc)

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment."""
        return time.monotonic()


def from_epoch_ms(ms: int) -> datetime:
    """Return the aware UTC time of *ms*, milliseconds since 1970. The store uses this unit."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def from_iso(text: str) -> datetime:
    """Return the time of *text* in ISO 8601, such as ``2026-11-01T09:00:00Z``. It may have no time zone.

    Raises:
        ValueError: *text* is no such time.

    """
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in {"Z", "z"} else text)  # Python 3.10 reads no Z


def to_epoch_ms(moment: datetime) -> int:
    """Return *moment* in milliseconds since 1970."""
    return round(moment.timestamp() * 1000)
