"""Times in words, in the time zone of who reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, tzinfo

from gpuqueue.clock import from_epoch_ms

#: The time zone of the reader; None: that of this process.
_ZONE: ContextVar[tzinfo | None] = ContextVar("zone", default=None)


@contextmanager
def in_zone(zone: tzinfo | None) -> Iterator[None]:
    """Write the times of this block in *zone*. The service answers readers of other zones than its own."""
    before = _ZONE.set(zone)
    try:
        yield
    finally:
        _ZONE.reset(before)


def local(moment: datetime) -> datetime:
    """Return *moment* in the time zone of the reader."""
    return moment.astimezone(_ZONE.get())


def when(moment: datetime | None) -> str:
    """Return *moment* in local time, to the second; ``-`` for None."""
    return local(moment).strftime("%Y-%m-%d %H:%M:%S") if moment else "-"


def clock(at_ms: int) -> str:
    """Return a time of the store's clock, in milliseconds since the epoch, as :func:`when` does."""
    return when(from_epoch_ms(at_ms))
