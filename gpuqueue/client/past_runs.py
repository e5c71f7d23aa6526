"""Earlier runs of programs, from the history, within a bounded time: a submit does not wait for the history."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuqueue.history.database import HistoryDatabase
    from gpuqueue.learning.past_run import PastRun

#: Longest wait for the history, in seconds, and how long it is left alone after it did not answer.
ANSWER_S, AWAY_S = 0.2, 10.0
#: How long an answer is used again, in seconds, and for how many programs. A service may get the same job many times.
FRESH_S, MOST_PROGRAMS = 1.0, 500


class PastRuns:
    """The earlier runs of programs, for one process. Threads may share an instance."""

    def __init__(self, url: str, database: Callable[[], HistoryDatabase], *, is_open: Callable[[], bool]) -> None:
        """Keep how to reach the history. *database* opens it, and *is_open* returns whether that was done already."""
        self._url, self._database, self._is_open = url, database, is_open
        self._known: dict[tuple[str, str], tuple[float, tuple[PastRun, ...]]] = {}
        self._away_until = 0.0

    def of(self, user: str, program: str, *, needed: bool) -> tuple[PastRun, ...] | None:
        """Return the runs of *program* by *user* that show a need, newest first. None if the history did not answer.

        A history that is no SQLite file is asked only if it is open already, or if the answer is *needed*: opening it
        takes longer than all the rest of a submit.
        """
        now = time.monotonic()
        until, runs = self._known.get((user, program), (0.0, ()))
        if now < until:
            return runs
        found = None if now < self._away_until else self._asked(user, program, needed=needed)
        if found is not None:
            if len(self._known) >= MOST_PROGRAMS:
                self._known.clear()
            self._known[user, program] = now + FRESH_S, found
        return found

    def _asked(self, user: str, program: str, *, needed: bool) -> tuple[PastRun, ...] | None:
        if self._url.startswith("sqlite:"):
            from gpuqueue.history import sqlite_past_runs  # noqa: PLC0415 - lazy import: many submits ask for nothing
            from gpuqueue.history.sqlite_file import Shut  # noqa: PLC0415 - as above

            with suppress(Shut):  # another form of address, or an error: the full history answers, if it is to be asked
                return sqlite_past_runs.runs_of(self._url, user, program)
        return self._from_database(user, program) if needed or self._is_open() else None

    def _from_database(self, user: str, program: str) -> tuple[PastRun, ...] | None:
        """Ask the history in a thread, which is left behind if it does not answer in time."""
        import threading  # noqa: PLC0415 - lazy import: most submits do not need it

        from gpuqueue.errors import HistoryUnreachable  # noqa: PLC0415 - as above

        found: list[tuple[PastRun, ...]] = []

        def ask() -> None:
            with suppress(HistoryUnreachable):
                found.append(database.runs_of_program(user, program))

        try:
            database = self._database()
        except HistoryUnreachable:  # no driver, or no address
            return None
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(ANSWER_S)
        if not found:
            self._away_until = time.monotonic() + AWAY_S
        return found[0] if found else None
