"""The kernel's limits on arguments, environment and paths of a process, checked at submit. Pure.

The limits are those of execve(2) on Linux. Each argument, and each variable as ``NAME=VALUE``, is one string of at most
32 pages (MAX_ARG_STRLEN). All strings together may take a quarter of the stack limit of the host that runs the job.
Only that host knows its stack limit, so a run beyond it ends as ``refused``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import brief

#: Most bytes of one argument, or of one variable with its name: 32 pages of the smallest size, less the final NUL.
MAX_STRING_BYTES = 32 * 4096 - 1
#: Most bytes of a path: PATH_MAX less the final NUL.
MAX_PATH_BYTES = 4095


def check_exec_limits(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
    """Check that a process can be given this command, environment and directory.

    Raises:
        BadRequest: a string or the path is too long, or a variable's name is invalid.

    """
    if any(not name or "=" in name for name in env):
        name = next(name for name in env if not name or "=" in name)
        raise BadRequest(f"{brief(name)} is no name of a variable: it must not be empty and holds no =")
    strings = (*argv, *map("=".join, env.items()))
    if not all(text.isascii() and len(text) <= MAX_STRING_BYTES for text in strings):
        _check_each(argv, env)
    if _bytes_of("the working directory", cwd) > MAX_PATH_BYTES:
        raise BadRequest(f"the working directory's path is longer than {MAX_PATH_BYTES} bytes: no process can enter it")


def _check_each(argv: Sequence[str], env: Mapping[str, str]) -> None:
    for what, text in _strings(argv, env):
        size = _bytes_of(what, text)
        if size > MAX_STRING_BYTES:
            raise BadRequest(
                f"{what} takes {size} bytes, and no process can be given more than {MAX_STRING_BYTES} in one: "
                "put it into a file"
            )


def _strings(argv: Sequence[str], env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for position, text in enumerate(argv):
        yield f"argument {position}" if position else "the program's name", text
    for name, value in env.items():
        yield f"the variable {brief(name)}", f"{name}={value}"


def _bytes_of(what: str, text: str) -> int:
    """Return the size of *text* for the kernel, in bytes. An escaped surrogate stands for one byte that is no UTF-8."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise BadRequest(f"{what} holds half a character (a lone surrogate), which no process can be given") from None
