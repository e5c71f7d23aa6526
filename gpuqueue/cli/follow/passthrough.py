"""What is passed on of a job's output, and how a terminal is left by it: a line of ours must not be part of that."""

from __future__ import annotations

import sys

from gpuqueue.console import put

#: Begins whatever changes a terminal: a colour, a cursor that is hidden.
ESCAPE = b"\x1b"
#: Plain letters again, and a cursor.
RESET = b"\x1b[0m\x1b[?25h"


class Shown:
    """Passes output on as it is, and keeps in mind what of it a terminal still stands under."""

    def __init__(self) -> None:
        self._is_coloured = self._is_open = False

    def put(self, chunk: bytes, *, err: bool = False) -> None:
        """Write *chunk* to standard output, or to standard error."""
        put(chunk, err=err)
        if chunk and (sys.stderr if err else sys.stdout).isatty():
            self._is_coloured = self._is_coloured or ESCAPE in chunk
            self._is_open = not chunk.endswith(b"\n")

    def finish(self) -> None:
        """Make room for a line of ours on a terminal: in its own colours, at the beginning of a line."""
        left = (RESET if self._is_coloured else b"") + (b"\r\n" if self._is_open else b"")
        self._is_coloured = self._is_open = False
        if left and sys.stderr.isatty():
            put(left, err=True)
