"""The end of a second command, as its caller sees it."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from gpuqueue.client.second_command import JobCommand, not_begun
from gpuqueue.errors import Unreachable
from gpuqueue.system import command_socket


class CutLine:
    """A way to the shim that is cut after the first output."""

    def send(self, frames: bytes) -> None:
        """Send nothing."""

    def pieces(self) -> Iterator[bytes]:
        """Yield the output, and end."""
        yield command_socket.frame(b"O", b"begun")

    def close(self) -> None:
        """Do nothing."""


def test_a_lost_connection_has_the_exit_code_of_what_does_not_answer() -> None:
    output = JobCommand(CutLine()).output()
    assert (b"begun", False) == next(output)
    with pytest.raises(Unreachable, match="the connection to the command was lost") as error:
        next(output)
    assert 4 == error.value.exit_code


@pytest.mark.parametrize(
    ("number", "reason", "code"),
    [
        (errno.ENOENT, "cannot start x: No such file or directory", 127),
        (errno.EACCES, "cannot start x as ann: Permission denied", 126),
        (errno.ENOENT, "cannot enter the working directory /x: No such file or directory", 5),
        (errno.EACCES, "cannot enter the working directory /x as ann: Permission denied", 5),
        (-1, "the job runs in a container", 5),
    ],
)
def test_only_a_program_has_the_codes_of_a_shell(number: int, reason: str, code: int) -> None:
    error = not_begun(f"{number} {reason}".encode())
    assert (reason, code) == (str(error), error.exit_code)
