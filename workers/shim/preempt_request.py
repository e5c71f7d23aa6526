"""The file that requests the preemption of a run. The job can read it too. Standard library only."""

from __future__ import annotations

import json
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: The file in the run directory.
NAME = "preempt.json"


class PreemptRequest:
    """A preemption request.

    ``until_s`` is when the run must have ended, on the host's monotonic clock, in seconds; None while there is no
    request. ``by`` is the id of the job that preempts the run. *grace_s* applies if the file cannot be parsed.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self.until_s: float | None = None
        self.by = ""
        #: Whether SIGTERM was sent to all of the job's processes.
        self.signalled = False

    def poll(self, read: Callable[[str], str | None]) -> bool:
        """Return whether the run is being preempted; *read* returns the text of a file, None if it is missing."""
        if self.until_s is None:
            text = read(NAME)
            if text is not None:
                self.until_s, self.by = self._parse(text)
        return self.until_s is not None

    def _parse(self, text: str) -> tuple[float, str]:
        try:
            plain = json.loads(text)
            return float(plain["until_s"]), str(int(plain["by"]))
        except (ValueError, KeyError, TypeError):
            return time.monotonic() + self._grace_s, ""

    def left_s(self) -> float:
        """Return how many seconds the job has left to end by itself."""
        return 0.0 if self.until_s is None else max(0.0, self.until_s - time.monotonic())
