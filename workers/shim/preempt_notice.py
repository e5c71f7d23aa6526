"""The word that a run must make place for another job: a file that its job may read as well. Standard library only."""

from __future__ import annotations

import json
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: The file in the run directory.
NAME = "preempt.json"


class Notice:
    """What the file says. ``until_s`` is on the host's monotonic clock; None while there is no such file.

    *grace_s* is what a run gets where the file makes no sense.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self.until_s: float | None = None
        self.by: str = ""
        #: Whether the job's processes were all sent SIGTERM.
        self.told = False

    def look(self, read: Callable[[str], str | None]) -> bool:
        """Return whether the run must make place; *read* returns a file, None if it is not there."""
        if self.until_s is None:
            text = read(NAME)
            if text is not None:
                self.until_s, self.by = self._meant(text)
        return self.until_s is not None

    def _meant(self, text: str) -> tuple[float, str]:
        try:
            plain = json.loads(text)
            return float(plain["until_s"]), str(int(plain["by"]))
        except (ValueError, KeyError, TypeError):
            return time.monotonic() + self._grace_s, ""

    def is_over(self, now: float) -> bool:
        """Return whether the time to leave by itself has passed."""
        return self.until_s is not None and now >= self.until_s

    def left_s(self) -> float:
        """Return how much of it is left."""
        return 0.0 if self.until_s is None else max(0.0, self.until_s - time.monotonic())
