"""A stream of bytes from the relay of a host to the client that waits for it, through a few parts in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from gpuqueue.service.responses import NotHere

#: Most parts in memory. The relay waits while the client does not read, and the client's connection has its own bound.
MOST_PARTS = 4
#: How long the client waits for the first sign of the relay, and then for each part, in seconds.
FIRST_S, SILENCE_S = 10.0, 60.0
#: How long the first part of an archive may take, in seconds. The program that packs sends nothing while it searches
#: files, and bounds the time without progress itself.
SEARCH_S = 600.0


class Transfer:
    """One stream. One side sends, the other reads; either may end it at any time."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._parts: deque[bytes] = deque()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._has_begun = self._has_parts = self._is_over = False
        self._trouble: str | None = None
        self._at_end: Callable[[], None] = lambda: None

    def at_end(self, call: Callable[[], None]) -> None:
        """Have *call* called once the reader is done."""
        self._at_end = call

    # ---- the relay's side --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that the relay has begun to answer.

        Raises:
            NotHere: nobody waits any more, or it has begun before.

        """
        if self._is_over or self._has_begun:
            raise NotHere("nobody waits for this request")
        self._has_begun = True
        self._news.set()

    async def send(self, part: bytes) -> None:
        """Pass *part* on. Wait while the client does not read.

        Raises:
            NotHere: the client has gone.

        """
        while len(self._parts) >= MOST_PARTS and not self._is_over:
            self._room.clear()
            await self._room.wait()
        if self._is_over:
            raise NotHere("nobody waits for this request any more")
        self._parts.append(part)
        self._has_parts = True
        self._news.set()

    def finish(self) -> None:
        """Note that all parts were sent."""
        self._is_over = True
        self._wake()

    def fail(self, reason: str) -> None:
        """End the stream before its end, unless it is over."""
        if not self._is_over:
            self._trouble = reason
            self.finish()

    # ---- the client's side -------------------------------------------------------------------------------------------

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts as they arrive.

        Raises:
            NotHere: the relay has failed, or does not answer.

        """
        while True:
            if self._parts:
                part = self._parts.popleft()
                self._room.set()
                yield part
            elif self._trouble is not None:
                raise NotHere(self._trouble)
            elif self._is_over:
                return
            else:
                await self._wait()

    async def close(self) -> None:
        """End the stream: the client needs no more of it."""
        self._parts.clear()
        self.fail("the client has gone")
        self._at_end()

    # ------------------------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        self._news.clear()
        had_begun = self._has_begun
        most_s = SILENCE_S if self._has_parts else SEARCH_S if had_begun else FIRST_S
        try:
            await asyncio.wait_for(self._news.wait(), most_s)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            self.fail(f"host {self._host} {'has stopped sending' if had_begun else 'does not answer'}")

    def _wake(self) -> None:
        self._news.set()
        self._room.set()
