"""Listening to a store's channels, on a connection of one's own."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuqueue.queue.resp.connection import Line

#: What a message looks like: its kind, its channel, its text.
_PARTS = 3


class Ear:
    """Hears what is published on the channels that it subscribes to, from then on."""

    def __init__(self, connected: Callable[[], Line]) -> None:
        self._connected = connected
        self._line: Line | None = None

    def subscribe(self, *channels: str) -> None:
        """Listen to *channels* as well."""
        if self._line is None:
            self._line = self._connected()
        self._line.send([("SUBSCRIBE", *channels)])

    def get_message(self, timeout: float = 0.0) -> dict[str, str] | None:
        """Return the next message, with its ``channel`` and its ``data``; None after *timeout* seconds.

        Raises:
            DoorError: the connection is gone, or the store does not let us listen.

        """
        if self._line is None:
            return None
        until = time.monotonic() + timeout
        while True:
            said = self._line.heard(until - time.monotonic())
            if isinstance(said, Exception):
                raise said
            if said is None or (isinstance(said, list) and len(said) == _PARTS and said[0] == "message"):
                return None if said is None else {"type": "message", "channel": said[1], "data": said[2]}

    def close(self) -> None:
        """Stop listening."""
        if self._line is not None:
            self._line.close()
            self._line = None
