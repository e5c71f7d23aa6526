"""Runs the command line in this process, and returns its output and exit code."""

from __future__ import annotations

import io
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

from gpuqueue.cli.main import main
from gpuqueue.console import INTERRUPTED, LEFT, READER_GONE
from gpuqueue.errors import GpuQueueError


@dataclass(frozen=True)
class Spoken:
    """The exit code and output of a command."""

    code: int
    stdout: bytes
    stderr: str


def documented() -> set[int]:
    """Return the exit codes of docs/reference/commands.md."""

    def codes(error: type[GpuQueueError]) -> set[int]:
        return {error.exit_code}.union(*(codes(below) for below in error.__subclasses__()))

    return {0, LEFT, INTERRUPTED, READER_GONE} | codes(GpuQueueError)


def speak(words: Sequence[str], encoding: str = "utf-8") -> Spoken:
    """Run ``gpuqueue`` with these words, on a terminal with this encoding."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    code: object = None
    with patch.object(sys, "argv", ["gpuqueue", *words]), patch.multiple(sys, stdout=out, stderr=err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        out.flush()
        err.flush()
    assert isinstance(code, int)
    printed = err.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    return Spoken(code, out.buffer.getvalue(), printed)  # type: ignore[attr-defined]


def harmless(text: str) -> bool:
    """Return whether every character of *text* is printable, a space or a line end."""
    return all(char.isprintable() or char == "\n" or unicodedata.category(char) == "Zs" for char in text)
