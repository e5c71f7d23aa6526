"""Time, handed in: whoever needs the time is given a :class:`Clock`."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """The two kinds of time; tests hand in one that they move themselves."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware and in UTC. It may jump."""

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment. It never goes back."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware and in UTC."""
        return datetime.now(timezone.utc)

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment."""
        return time.monotonic()


def from_epoch_ms(ms: int) -> datetime:
    """Return the aware UTC time of *ms* milliseconds since 1970, the unit that the store keeps."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def to_epoch_ms(moment: datetime) -> int:
    """Return *moment* in milliseconds since 1970."""
    return round(moment.timestamp() * 1000)
