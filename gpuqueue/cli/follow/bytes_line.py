"""The line on stderr that says how many bytes have arrived, while files are fetched at a terminal."""

from __future__ import annotations

import contextlib
import sys
import time

from gpuqueue.cli.output.render import is_dumb
from gpuqueue.text.units import format_bytes

#: Shortest time after which the line is printed, and the time between two updates, in seconds.
PATIENCE_S, WRITE_S = 0.5, 0.2
#: Returns to the beginning of the line and clears it.
CLEAR = "\r\x1b[K"


class BytesLine:
    """Prints how much has arrived, and how fast. Prints nothing if stderr is no terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty() and not is_dumb()
        self._began_s = time.monotonic()
        self._next_s = self._began_s + PATIENCE_S
        self._is_shown = False

    def seen(self, size_bytes: int) -> None:
        """Update the line."""
        now = time.monotonic()
        if not self._is_terminal or now < self._next_s:
            return
        self._next_s = now + WRITE_S
        rate = format_bytes(round(size_bytes / (now - self._began_s)))
        self._put(f"{CLEAR}{format_bytes(size_bytes)}, {rate}/s")
        self._is_shown = True

    def clear(self) -> None:
        """Clear the line before other output."""
        if self._is_shown:
            self._put(CLEAR)
            self._is_shown = False

    @staticmethod
    def _put(text: str) -> None:
        """Write to stderr without click, which removes the sequence that clears the line if colours are off."""
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
