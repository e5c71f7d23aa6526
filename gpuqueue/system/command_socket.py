"""The socket in a run directory by which a client has a second command run in the job.

The other end is the shim. workers/shim/second_command.py describes the frames. A service begins its answer with one
more frame, which has the name of the command there.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpuqueue.system import terminal_socket
from gpuqueue.system.terminal_socket import size_frame, typed_frames

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from gpuqueue.model.api import SecondCommand

__all__ = [
    "INPUT_ENDED",
    "NAMED",
    "SOCKET",
    "connected",
    "frame",
    "frames",
    "request_frames",
    "size_frame",
    "typed_frames",
]
#: The socket in the run directory.
SOCKET = "exec"
#: The letter of the frame with the name that a service gives a command, and that with the reason why none runs.
NAMED, NOT_BEGUN = b"S", b"N"
#: Most bytes of one frame.
MAX_BYTES = 0xFFFF
#: The longest wait for the shim of a running job to begin, and the time between two tries, in seconds.
BEGIN_S, AGAIN_S = 5.0, 0.02
_HEAD = struct.Struct("!cH")


def frame(letter: bytes, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return _HEAD.pack(letter, len(payload)) + payload


#: Says that the input has ended.
INPUT_ENDED = frame(b"Z")


def connected(run_dir: Path) -> socket.socket:
    """Return a connection to the shim in *run_dir*. Wait for the shim: a job is running before its shim begins.

    Raises:
        FileNotFoundError, ConnectionRefusedError: the run has ended, or takes no second command.
        OSError: the socket cannot be opened, or belongs to another account.

    """
    until_s = time.monotonic() + BEGIN_S
    while True:
        try:
            return terminal_socket.connected(run_dir, SOCKET)
        except FileNotFoundError:
            if time.monotonic() > until_s or not run_dir.is_dir() or (run_dir / "exit").exists():
                raise
        time.sleep(AGAIN_S)


def request_frames(command: SecondCommand, ticket: str | None) -> bytes:
    """Return the request for *command*, with the signature *ticket* of the service."""
    size = None if command.window is None else [command.window.columns, command.window.rows]
    plain = {"argv": command.argv, "terminal": size, "input": command.has_input, "ticket": ticket}
    text = json.dumps(plain).encode("ascii")
    parts = (text[begin : begin + MAX_BYTES] for begin in range(0, len(text), MAX_BYTES))
    return b"".join(frame(b"R", part) for part in parts) + frame(b"S")


def frames(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the letter and the payload of each frame in *pieces*."""
    rest = bytearray()
    for piece in pieces:
        rest += piece
        while len(rest) >= _HEAD.size:
            letter, length = _HEAD.unpack_from(rest)
            end = _HEAD.size + length
            if len(rest) < end:
                break
            payload = bytes(rest[_HEAD.size : end])
            del rest[:end]
            yield letter, payload
