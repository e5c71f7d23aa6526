"""A program on a real pseudo-terminal, and the screen that a user would see."""

from __future__ import annotations

import copy
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyte
from bounded import until

#: The mode in which a full-screen program has a separate screen.
OWN_SCREEN = 1049


class Screen(pyte.Screen):
    """A screen that restores its content when a full-screen program exits."""

    def set_mode(self, *modes: int, **kwargs: bool) -> None:
        """Set the terminal's modes; save the content if the program wants a separate screen."""
        super().set_mode(*modes, **kwargs)
        if OWN_SCREEN in modes and kwargs.get("private"):
            self._kept = (copy.deepcopy(self.buffer), self.cursor.x, self.cursor.y)
            self.erase_in_display(2)

    def reset_mode(self, *modes: int, **kwargs: bool) -> None:
        """Reset the terminal's modes; restore the saved content."""
        super().reset_mode(*modes, **kwargs)
        if OWN_SCREEN in modes and kwargs.get("private") and self._kept is not None:
            self.buffer, self.cursor.x, self.cursor.y = self._kept
            self._kept = None

    _kept: tuple[Any, int, int] | None = None


class Terminal:
    """Runs *command* on a terminal of its own, with this number of columns and rows."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        columns: int = 80,
        rows: int = 24,
        directory: Path | None = None,
        term: str = "xterm-256color",
    ) -> None:
        self._screen = Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        #: All output so far, including escape sequences.
        self.written = b""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        wanted = {**environ, "TERM": term, "COLUMNS": str(columns), "LINES": str(rows)}
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=wanted,
            cwd=directory,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - so that Ctrl-C is a signal
        )
        os.close(theirs)

    def lines(self) -> list[str]:
        """Return the lines on the screen."""
        while select.select([self._ours], [], [], 0)[0]:
            try:
                written = os.read(self._ours, 65536)
            except OSError:  # the program has exited and closed the terminal
                break
            if not written:
                break
            self.written += written
            self._stream.feed(written)
        return [line.rstrip() for line in self._screen.display]

    @property
    def screen(self) -> Screen:
        """Return the screen with its colours, as of the last read."""
        return self._screen

    def line_of_cursor(self) -> str:
        """Return the line of the cursor."""
        return self.lines()[self._screen.cursor.y]

    def shows(self, text: str) -> str:
        """Wait until *text* is in one of the lines, and return that line."""

        def there() -> str | None:
            return next((line for line in self.lines() if text in line), None)

        found = until(there, timeout_s=60, what=f"{text!r} on the screen, which shows\n{self.picture()}\n")
        assert found is not None
        return found

    def hides(self, text: str) -> None:
        """Wait until *text* is in no line."""
        until(lambda: not any(text in line for line in self.lines()), timeout_s=60, what=f"{text!r} off the screen")

    def picture(self) -> str:
        """Return the whole screen as text."""
        return "\n".join(self.lines())

    def press(self, keys: str) -> None:
        """Type *keys*."""
        left = memoryview(keys.encode())
        while left:
            left = left[os.write(self._ours, left) :]

    def resize(self, *, columns: int, rows: int) -> None:
        """Change the size, like a user who resizes a window."""
        self.lines()
        self._screen.resize(rows, columns)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def ended(self) -> int:
        """Wait until the program has exited, and return its exit code."""

        def code() -> tuple[int] | None:
            self.lines()  # a program whose output is not read cannot end
            done = self.process.poll()
            return None if done is None else (done,)

        found = until(code, timeout_s=60, what="the program's end")
        assert found is not None
        return found[0]

    def __enter__(self) -> Terminal:  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=30)
        os.close(self._ours)
