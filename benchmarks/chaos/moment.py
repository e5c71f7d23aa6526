"""The moments of the queue's steps, from the outbox, so that a kill hits the middle of a step."""

from __future__ import annotations

import time
from typing import Any, cast

from gpuqueue.errors import Unreachable
from gpuqueue.model.event import Act
from gpuqueue.queue.connect import connect, translated
from gpuqueue.queue.keys import OUTBOX

#: Longest wait for the next event in one call, in seconds.
WAIT_S = 0.5


class Moments:
    """Waits for the next step of a script of the queue."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = connect(url, wait_s=WAIT_S)

    def next(self, act: Act | None, timeout_s: float) -> dict[str, str] | None:
        """Return the fields of the next event of *act* (None: any), or None without one or without the store."""
        deadline = time.monotonic() + timeout_s
        last = "$"
        while time.monotonic() < deadline:
            try:
                with translated(self._url):
                    reply = cast("list[Any]", self._client.xread({OUTBOX: last}, count=1, block=round(WAIT_S * 1000)))
            except Unreachable:
                return None
            for _, entries in reply:
                for last, fields in entries:  # noqa: B007 - where the next read goes on
                    if act is None or fields["act"] == act.value:
                        return cast("dict[str, str]", fields)
        return None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
