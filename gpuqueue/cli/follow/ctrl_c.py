"""Deferred handling of Ctrl-C, so that no output is lost."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class CtrlC:
    """Records the first Ctrl-C, which ``check`` raises; the second one raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self._noted = False

    def __enter__(self) -> CtrlC:  # noqa: PYI034 - typing.Self is of 3.11
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:  # ignored under nohup or in the background of a script
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as the signal module calls it
        if self._noted:
            raise KeyboardInterrupt
        self._noted = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a Ctrl-C."""
        if self._noted:
            raise KeyboardInterrupt

    def forget(self) -> None:
        """Forget the recorded Ctrl-C."""
        self._noted = False
