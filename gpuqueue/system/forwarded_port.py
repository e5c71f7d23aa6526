"""One connection to a port of a run: where it goes on this host, and how its bytes travel over a WebSocket.

A message of bytes is what one end sends, and an empty one says that this end sends no more: the other direction goes
on. A message of text is a number, how many bytes were passed on: the other end may send as many again. So nobody sends
more than WINDOW_BYTES that wait for a slow reader, and the WebSocket is always read: its pings are answered. The first
message of the client, ``0``, makes the connection. Before that, only the rights and the port were checked.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from gpuqueue.system.process import ProcessIdentity
from gpuqueue.system.run_processes import address_of, below

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Awaitable
    from pathlib import Path

#: Most bytes of one direction that were sent and not passed on, and most of them in one message.
WINDOW_BYTES, CHUNK_BYTES = 256 * 1024, 64 * 1024
#: Asks for the connection.
BEGIN = "0"


def not_listening(port: int) -> str:
    """Return the message that a run has no such port."""
    return f"no process of the job listens on port {port} of 127.0.0.1"


class Messages(Protocol):
    """One end of a WebSocket."""

    async def receive(self) -> bytes | str | None:
        """Return the next message, None if the WebSocket is closed."""

    async def send(self, message: bytes | str) -> None:
        """Send a message. Raises ConnectionError if the WebSocket is closed."""


def address_in(run_dir: Path, port: int) -> str | None:
    """Return the address here at which only processes of the run in *run_dir* listen on *port*, None if there is none.

    They are those below its shim. Only their account can see their sockets.
    """
    try:
        shim = ProcessIdentity.parse((run_dir / "pid").read_text(encoding="ascii").partition("\n")[0])
    except (OSError, UnicodeDecodeError):
        return None
    return address_of(port, below(shim.pid)) if shim is not None and shim.alive() else None


async def connect_and_carry(messages: Messages, address: str, port: int) -> None:
    """Connect to *port* once the client asks for that, and carry the connection until it is over."""
    if await messages.receive() is None:
        return
    try:
        reader, writer = await asyncio.open_connection(address, port)
    except OSError:  # the program has closed its port just now
        return
    await carry(reader, writer, messages)


async def carry(reader: StreamReader, writer: StreamWriter, messages: Messages) -> None:
    """Pass bytes on between a connection and *messages* until both directions have ended, or one end is gone."""
    stream = _Stream(reader, writer, messages)
    writing = asyncio.ensure_future(stream.write())
    try:
        await first_of(_all_of(stream.send(), asyncio.shield(writing)), stream.receive())
        if stream.has_end:  # all that was sent to this end is here, also if the other one has closed meanwhile
            await asyncio.wait({writing})
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        writer.close()


async def join(one: tuple[StreamReader, StreamWriter], other: tuple[StreamReader, StreamWriter]) -> None:
    """Pass bytes on between two connections until both directions have ended, or one end is gone."""
    try:
        await first_of(_all_of(_copy(one[0], other[1]), _copy(other[0], one[1])))
    finally:
        one[1].close()
        other[1].close()


async def relay(one: Messages, other: Messages) -> None:
    """Pass messages on between two WebSockets until one of them is closed."""
    await first_of(_pass_on(one, other), _pass_on(other, one))


async def first_of(*parts: Awaitable[object]) -> None:
    """Run *parts* until the first one has ended, and cancel the others. That an end is gone is no error."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, OSError):
            raise result


async def _all_of(*parts: Awaitable[object]) -> None:
    """Run *parts* until all have ended, or the first one fails."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class _Stream:
    """The two directions of one connection."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, messages: Messages) -> None:
        self._reader, self._writer, self._messages = reader, writer, messages
        self._may_send_bytes, self._has_room = WINDOW_BYTES, asyncio.Event()
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting_bytes = 0
        #: Whether the other end has said that it sends no more.
        self.has_end = False

    async def send(self) -> None:
        """Send what the connection has, as far as the other end lets it."""
        while True:
            while self._may_send_bytes <= 0:
                self._has_room.clear()
                await self._has_room.wait()
            part = await self._reader.read(min(CHUNK_BYTES, self._may_send_bytes))
            self._may_send_bytes -= len(part)
            await self._messages.send(part)
            if not part:
                return

    async def receive(self) -> None:
        """Take each message at once. It returns when the WebSocket is closed, or the other end breaks the rules."""
        while (message := await self._messages.receive()) is not None:
            if isinstance(message, str):
                if not message.isascii() or not message.isdigit():
                    return
                self._may_send_bytes += int(message[:9])
                self._has_room.set()
                continue
            self._waiting_bytes += len(message)
            if self._waiting_bytes > WINDOW_BYTES:
                return
            self._waiting.put_nowait(message)
            self.has_end = self.has_end or not message

    async def write(self) -> None:
        """Write into the connection what has come, as fast as its reader takes it."""
        while part := await self._waiting.get():
            self._writer.write(part)
            await self._writer.drain()
            self._waiting_bytes -= len(part)
            with contextlib.suppress(ConnectionError):  # it has sent all, and does not wait for that
                await self._messages.send(str(len(part)))
        _end(self._writer)


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    while part := await reader.read(CHUNK_BYTES):
        writer.write(part)
        await writer.drain()
    _end(writer)


def _end(writer: StreamWriter) -> None:
    """Send no more into a connection, which may be closed already."""
    with contextlib.suppress(RuntimeError, OSError):
        writer.write_eof()


async def _pass_on(source: Messages, target: Messages) -> None:
    while (message := await source.receive()) is not None:
        await target.send(message)
