"""Pauses between two tries, and the log lines about what does not work."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

#: The pause after the first failure, in seconds. It doubles with each further one.
FIRST_S = 1.0


class Trouble:
    """What prevents one kind of work, such as a service that is away. Each trouble is logged once per outage."""

    def __init__(self, waiting: str, working: str, *, most_s: float = 30.0) -> None:
        """Log *waiting* with each trouble, and *working* when it is over. The pauses grow up to *most_s*."""
        self._words = waiting, working
        self._most_s = most_s
        self._reported: set[str] = set()
        self._tries = 0

    def report(self, trouble: str) -> float:
        """Log *trouble* unless it was logged before, and return how long to wait before the next try, in seconds."""
        if trouble not in self._reported:
            log.warning("%s: %s", self._words[0], trouble)
            self._reported.add(trouble)
        self._tries += 1
        return min(FIRST_S * 2.0 ** min(self._tries - 1, 30), self._most_s)

    def over(self) -> None:
        """Note that the work goes on."""
        if self._reported:
            log.warning("%s", self._words[1])
        self._reported.clear()
        self._tries = 0


class Pending:
    """The trouble of single runs, which does not hold up the others."""

    def __init__(self) -> None:
        #: Of each run: its trouble, when it began, and when to try again, on the monotonic clock.
        self._runs: dict[str, tuple[Trouble, float, float]] = {}

    def has(self, name: str) -> bool:
        """Return whether the run with the *name* has had trouble."""
        return name in self._runs

    def is_due(self, name: str) -> bool:
        """Return whether the run with the *name* may be tried now."""
        known = self._runs.get(name)
        return known is None or time.monotonic() >= known[2]

    def report(self, name: str, trouble: str) -> float:
        """Note the *trouble* of a run, and return for how long it has had any, in seconds."""
        now_s = time.monotonic()
        known, since_s, _ = self._runs.get(name) or (
            Trouble(f"run {name} waits", f"run {name} goes on", most_s=300.0),
            now_s,
            now_s,
        )
        self._runs[name] = known, since_s, now_s + known.report(trouble)
        return now_s - since_s

    def forget(self, name: str) -> None:
        """Forget the trouble of a run."""
        self._runs.pop(name, None)
