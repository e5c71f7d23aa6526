"""A second command in a job behind a service: output comes as one long answer, and input goes with requests."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuqueue.client.second_command import JobCommand, not_begun
from gpuqueue.errors import ServiceUnreachable
from gpuqueue.model.api import CommandInput, SecondCommand, Whether
from gpuqueue.system import command_socket

if TYPE_CHECKING:
    from gpuqueue.client.remote.http import Answer, HttpConnection
    from gpuqueue.client.remote.link import Link


def begun(link: Link, name: str, command: SecondCommand) -> JobCommand:
    """Begin *command* in the running job *name*, as a segment of a path."""
    connection, answer = link.begun(f"/jobs/{name}/exec", command)
    return JobCommand(RemoteLine(link, connection, answer))


class RemoteLine:
    """The way to a shim through the service *link*. The command ends with the *answer*."""

    def __init__(self, link: Link, connection: HttpConnection, answer: Answer) -> None:
        self._link, self._connection, self._answer = link, connection, answer
        self._frames = command_socket.frames(self._received())
        letter, payload = next(self._frames, (b"", b""))
        if letter == command_socket.NOT_BEGUN:
            raise not_begun(payload)
        if letter != command_socket.NAMED:
            raise ServiceUnreachable(f"the service at {link.url} ended its answer")
        self._place = f"/commands/{payload.decode('ascii')}/input"

    def send(self, frames: bytes) -> None:
        """Send *frames*. A request is never sent twice, and again only if the service has taken nothing of it."""
        body = CommandInput(frames=base64.b64encode(frames).decode("ascii"))
        while not self._link.answered("POST", self._place, body, kind=Whether, resend=False)[0].answer:
            pass  # it has waited for the command to read its input

    def pieces(self) -> Iterator[bytes]:
        """Yield what the shim sends."""
        for letter, payload in self._frames:
            yield command_socket.frame(letter, payload)

    def close(self) -> None:
        """Leave the command. A thread that waits for output sees the end."""
        self._connection.shut()

    def _received(self) -> Iterator[bytes]:
        with self._link.reporting():
            yield from self._answer.pieces()
