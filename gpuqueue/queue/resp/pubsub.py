"""Subscriptions to a store's channels, on a separate connection."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuqueue.queue.resp.connection import Line

#: The number of parts of a message: kind, channel and text.
_PARTS = 3


class PubSub:
    """A subscriber: receives the messages published on its channels after it has subscribed."""

    def __init__(self, connected: Callable[[], Line]) -> None:
        self._connected = connected
        self._line: Line | None = None

    def subscribe(self, *channels: str) -> None:
        """Subscribe to further *channels*."""
        if self._line is None:
            self._line = self._connected()
        self._line.send([("SUBSCRIBE", *channels)])

    def get_message(self, timeout: float = 0.0) -> dict[str, str] | None:
        """Return the next message, with its ``channel`` and its ``data``; None after *timeout* seconds.

        Raises:
            RespError: the connection is lost, or the store refuses the subscription.

        """
        if self._line is None:
            return None
        until = time.monotonic() + timeout
        while True:
            message = self._line.heard(until - time.monotonic())
            if isinstance(message, Exception):
                raise message
            if message is None or (isinstance(message, list) and len(message) == _PARTS and message[0] == "message"):
                return None if message is None else {"type": "message", "channel": message[1], "data": message[2]}

    def close(self) -> None:
        """Close the connection."""
        if self._line is not None:
            self._line.close()
            self._line = None
