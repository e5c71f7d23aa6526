"""What the kernel can hand to a process. A job that no process could be given is refused when it is submitted.

The limits are those of execve(2) on Linux: a variable is one string ``NAME=VALUE``, and no string may be longer than
32 pages (MAX_ARG_STRLEN). All strings together may take a quarter of the stack limit of the host that runs the job,
which only that host knows: what is too much there ends as ``refused``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import brief

#: Most bytes of one argument, or of one variable with its name: 32 of the smallest pages, less the NUL at its end.
MAX_STRING_BYTES = 32 * 4096 - 1
#: Most bytes of a path: PATH_MAX less the NUL at its end.
MAX_PATH_BYTES = 4095


def refuse_what_no_process_takes(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
    """Refuse a command, an environment or a directory that no process can be given.

    Raises:
        BadRequest: in words, which it is and what to do.

    """
    if any(not name or "=" in name for name in env):
        name = next(name for name in env if not name or "=" in name)
        raise BadRequest(f"{brief(name)} is no name of a variable: it must not be empty and holds no =")
    for what, text in _strings(argv, env):
        size = _bytes_of(what, text)
        if size > MAX_STRING_BYTES:
            raise BadRequest(
                f"{what} takes {size} bytes, and no process can be given more than {MAX_STRING_BYTES} in one: "
                "put it into a file"
            )
    if _bytes_of("the working directory", cwd) > MAX_PATH_BYTES:
        raise BadRequest(f"the working directory's path is longer than {MAX_PATH_BYTES} bytes: no process can enter it")


def _strings(argv: Sequence[str], env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for position, text in enumerate(argv):
        yield f"argument {position}" if position else "the program's name", text
    for name, value in env.items():
        yield f"the variable {brief(name)}", f"{name}={value}"


def _bytes_of(what: str, text: str) -> int:
    """Return how many bytes *text* is for the kernel; a byte that is no UTF-8 is one escaped surrogate in it."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise BadRequest(f"{what} holds half a character (a lone surrogate), which no process can be given") from None
