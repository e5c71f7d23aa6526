"""The second commands in jobs that the clients of this service wait for, here and on worker hosts.

Frames pass from the client to the shim of the run and back; the service reads none. Everything here runs in the event
loop of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from gpuqueue.errors import GpuQueueError, HostUnreachable
from gpuqueue.model.job_spec import Account
from gpuqueue.service.relay_requests import CommandRequest

#: Most bytes of one part of the output.
PART_BYTES = 65536
#: How long a request with input waits for the command to read what came before, in seconds. Then the client asks again.
FULL_S = 20.0


class Line(Protocol):
    """The way to the shim of a run."""

    async def send(self, frames: bytes) -> bool:
        """Send *frames*. Return False if the command has read too little to take them within FULL_S."""

    def parts(self) -> AsyncIterator[bytes]:
        """Yield what the shim sends, until its end."""

    def close(self) -> None:
        """Leave the command, which ends."""


class LocalLine:
    """The way to a shim on this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def of(cls, connected: socket.socket) -> LocalLine:
        """Return the line over a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=connected))

    async def send(self, frames: bytes) -> bool:
        """Send *frames*."""
        try:
            await asyncio.wait_for(self._writer.drain(), FULL_S)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            return False
        except ConnectionError:  # the command has ended
            return True
        self._writer.write(frames)
        return True

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield what the shim sends."""
        with contextlib.suppress(ConnectionError):
            while part := await self._reader.read(PART_BYTES):
                yield part

    def close(self) -> None:
        """Leave the command."""
        self._writer.close()


class HostLine:
    """The way to a shim on a worker host, by its relay."""

    def __init__(self, request: CommandRequest) -> None:
        self._request = request

    async def send(self, frames: bytes) -> bool:
        """Send *frames*."""
        try:
            return await self._request.keys.put(frames, FULL_S)
        except HostUnreachable:  # the output says so
            return True

    def parts(self) -> AsyncIterator[bytes]:
        """Yield what the shim sends."""
        return self._request.transfer.parts()

    def close(self) -> None:
        """Leave the command."""
        self._request.end("the client has gone")


class SecondCommand:
    """A command of *owner*, whose client reads its output with one long request."""

    def __init__(self, line: Line, owner: Account, label: str) -> None:
        self.line, self.owner, self.label = line, owner, label


class SecondCommands:
    """All of them, by their names, which nobody guesses."""

    def __init__(self) -> None:
        self._commands: dict[str, SecondCommand] = {}

    def add(self, command: SecondCommand) -> tuple[str, Callable[[], None]]:
        """Add *command*, and return its name and what ends it."""
        name = secrets.token_hex(16)
        self._commands[name] = command

        def end() -> None:
            self._commands.pop(name, None)
            command.line.close()

        return name, end

    def find(self, name: str) -> SecondCommand | None:
        """Return the command *name*, None if it has ended."""
        return self._commands.get(name)

    def close(self) -> None:
        """End all: the service stops."""
        for command in list(self._commands.values()):
            command.line.close()


def reason_of(error: GpuQueueError) -> bytes:
    """Return why no command runs, as the shim says it."""
    return f"-1 {error}".encode(errors="replace")[: PART_BYTES - 1]
