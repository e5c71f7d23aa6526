"""Passes a job's output to the terminal, and restores the terminal before gpuqueue prints a line of its own."""

from __future__ import annotations

import sys

from gpuqueue.console import put

#: First byte of every sequence that changes a terminal's state, such as its colour.
ESCAPE = b"\x1b"
#: Resets colours and shows the cursor.
RESET = b"\x1b[0m\x1b[?25h"


class Shown:
    """Passes output on unchanged, and tracks whether it may have left colours or an unfinished line."""

    def __init__(self) -> None:
        self._is_coloured = self._is_open = False

    def put(self, chunk: bytes, *, err: bool = False) -> None:
        """Write *chunk* to standard output, or to standard error."""
        put(chunk, err=err)
        if chunk and (sys.stderr if err else sys.stdout).isatty():
            self._is_coloured = self._is_coloured or ESCAPE in chunk
            self._is_open = not chunk.endswith(b"\n")

    def finish(self) -> None:
        """Reset the terminal and finish an open line, so that a message can follow."""
        left = (RESET if self._is_coloured else b"") + (b"\r\n" if self._is_open else b"")
        self._is_coloured = self._is_open = False
        if left and sys.stderr.isatty():
            put(left, err=True)
