"""Keeps the embedded store alive: starts it again when it died, and records why, for ``status`` and ``doctor``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from gpuqueue.embedded.store import (
    RESERVE_BYTES,
    UNREACHABLE_S,
    EmbeddedStore,
    StoreDiskFull,
    StoreFilesDamaged,
)
from gpuqueue.errors import GpuQueueError, StoreLoading, StoreUnreachable
from gpuqueue.lazy.imports import later
from gpuqueue.queue.absence import THEN, StoreState, StoreTrouble, record_of
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import DetachedProcess, ProcessIdentity, age_s
from gpuqueue.text.units import format_bytes

if TYPE_CHECKING:
    import logging
else:  # the commands only read the record
    logging = later("logging")

#: A store that answered for this long starts over with the first pause, in seconds.
LIVED_WELL_S = 60.0
#: Time between two checks of a living store: its socket and its reserve, in seconds.
CHECK_S = 1.0
#: Number of starts in a row that fail, and time without room on the disk in seconds, after which a supervisor that may
#: end gives up.
MOST_TRIES, MOST_WITHOUT_ROOM_S = 5, 60.0
#: Size of the record, in bytes. It is written in place, so that it can be written on a full disk.
RECORD_BYTES = 4096
#: Longest reason in the record, in characters, so that it fits.
MOST_REASON = 800


def _log() -> logging.Logger:
    return logging.getLogger(__name__)


class StoreSupervisor:
    """Watches the store of *settings*, and starts it again with a growing pause. Call :meth:`poll` often."""

    def __init__(self, settings: Settings, pause_s: Callable[[int], float], *, may_end: bool) -> None:
        """Watch the store. *pause_s* returns the pause before a start by the number of failures in a row.

        With *may_end* the supervisor gives up at last, so that what supervises this process can act.
        """
        self._store = EmbeddedStore(settings)
        self._record = record_of(settings)
        self._pause_s = pause_s
        self._may_end = may_end
        #: The last server that was started here, and its process if this process is its parent.
        self._server = self._store.server()
        self._child: DetachedProcess | None = None
        self._state = StoreState.STARTING
        self._trouble = StoreTrouble.read(settings)
        self._served_s = time.monotonic()
        #: When the store died, and since when its disk has no room.
        self._died_s: float | None = None
        self._full_s: float | None = None
        self._failures = 0
        #: When to check the store again, or to start it.
        self._due_s = 0.0
        self._can_reserve = True
        if self._trouble is not None:
            self._put(self._trouble)  # commands ask whether the process that wrote the record lives
        elif self._server is not None:
            self._write(b"")  # so that its block is there when the disk is full

    def poll(self) -> None:
        """Start the store if it died. Return soon, whatever the store does.

        Raises:
            StoreUnreachable: it cannot be started again, and the supervisor may end.

        """
        now = time.monotonic()
        if self._lives():
            if now >= self._due_s:
                self._check(now)
        elif self._server is not None or self._child is not None:  # else it was stopped on purpose
            if self._state in {StoreState.SERVING, StoreState.STARTING}:
                self._note_death(now)
            if self._state is not StoreState.GIVEN_UP and now >= self._due_s:
                self._start(now)

    def _lives(self) -> bool:
        """Return whether the server lives. Take over one that another process has started, as ``up`` does."""
        if self._child is not None and self._child.poll() is None:
            return True
        if self._server is not None and self._server.alive():
            return True
        found = self._store.server()
        if found is None:
            self._server = self._child = None
        elif found != self._server and found.alive():
            self._server, self._child, self._state, self._due_s = found, None, StoreState.STARTING, 0.0
            return True
        return False

    def _check(self, now: float) -> None:
        """Check that a living server answers and can be reached, and that its reserve is there."""
        if self._state is not StoreState.SERVING:
            try:
                if not self._store.running():
                    return
            except StoreLoading:
                return
            self._note_return(now)
        self._due_s = now + CHECK_S
        if now - self._served_s > LIVED_WELL_S:
            self._failures = 0
        self._end_unreachable()
        self._make_reserve()

    def _note_return(self, now: float) -> None:
        self._state, self._served_s = StoreState.SERVING, now
        away_s = None if self._died_s is None else now - self._died_s
        self._died_s = self._full_s = None
        if away_s is not None:
            _log().warning("the store answers again, after %.1f s", away_s)
        if self._trouble is not None and self._trouble.state is not StoreState.SERVING:
            self._put(replace(self._trouble, state=StoreState.SERVING, away_s=away_s))

    def _end_unreachable(self) -> None:
        """End a server whose socket was deleted, for example by a cleanup of /tmp. No client can reach it.

        If its whole directory was deleted, open connections still reach its data, and ``up`` restores it.
        """
        if self._server is None or self._store.has_socket() or (age_s(self._server.pid) or 0.0) < UNREACHABLE_S:
            return
        if self._store.server() is None:
            return
        _log().error("the socket of the store (pid %s) was deleted: it is restarted", self._server.pid)
        self._server.send(signal.SIGTERM)

    def _make_reserve(self) -> None:
        if not self._can_reserve:
            return
        try:
            if self._store.reserve.make():
                _log().info("the store has a reserve of %s for a full disk", format_bytes(RESERVE_BYTES))
        except OSError as error:
            self._can_reserve = False
            _log().warning("the store has no reserve for a full disk: %s", error.strerror)

    def _note_death(self, now: float) -> None:
        """Log and record why the server died."""
        pid, code = 0 if self._server is None else self._server.pid, None
        if self._child is not None:
            pid, code = self._child.pid, self._child.returncode
            lived_s = 0.0 if self._state is StoreState.STARTING else now - self._served_s
            is_early = lived_s == 0.0 or (lived_s <= LIVED_WELL_S and code != -signal.SIGKILL)
            # A store that was killed while it served did not fail, nor did one whose disk is full.
            self._failures += is_early and self._has_room()
        self._child = None
        if self._died_s is None:
            self._died_s, self._trouble = now, None
        self._fail(now, self._store.why_ended(pid, code))

    def _has_room(self) -> bool:
        try:
            return self._store.has_room()
        except OSError:
            return True

    def _fail(self, now: float, why: GpuQueueError) -> None:
        """Record a death or a failed start, and give up, or set the time of the next start.

        Raises:
            StoreUnreachable: the supervisor gives up, and may end.

        """
        self._due_s = now + self._pause_s(self._failures)
        gives_up = isinstance(why, StoreFilesDamaged) or (self._may_end and self._failures >= MOST_TRIES)
        self._state = StoreState.GIVEN_UP if gives_up else StoreState.PAUSING
        then = "it is not started again" if gives_up else f"it is started again in {self._due_s - now:.1f} s"
        _log().error("%s: %s", why, then)
        self._note(str(why))
        if gives_up and self._may_end:
            raise StoreUnreachable(f"the store cannot be started again: {why}")

    def _start(self, now: float) -> None:
        """Start a server, unless one still holds the directory: one that is ending, or that ``up`` has just started."""
        try:
            child = self._store.launch()
        except StoreDiskFull as error:
            self._wait_for_room(now, error)
        except FileNotFoundError:  # the directory was deleted, with all data: `up` restores it
            self._due_s = now + CHECK_S
        except (GpuQueueError, OSError) as error:
            self._failures += 1
            self._fail(now, error if isinstance(error, GpuQueueError) else GpuQueueError(f"the store: {error}"))
        else:
            if child is not None:
                self._child, self._server, self._state = child, self._store.server(), StoreState.STARTING
                self._due_s = now

    def _wait_for_room(self, now: float, error: StoreDiskFull) -> None:
        self._due_s = now + CHECK_S
        if self._state is not StoreState.NO_ROOM:
            self._state = StoreState.NO_ROOM
            _log().error("%s", error)
            self._note(str(error))
        if self._full_s is None:
            self._full_s = now
        elif self._may_end and now - self._full_s > MOST_WITHOUT_ROOM_S:
            raise StoreUnreachable(f"the store cannot be started again: {error}")

    def _note(self, why: str) -> None:
        """Record the present state, and *why* after the first reason of this outage."""
        before = self._trouble
        if before is None:
            self._put(StoreTrouble(at=datetime.now(timezone.utc), why=why[:MOST_REASON], state=self._state))
        else:
            first = before.why.partition(THEN)[0][: MOST_REASON // 2]
            text = first if why.startswith(first) else f"{first}{THEN}{why}"[:MOST_REASON]
            self._put(replace(before, why=text, state=self._state))

    def _put(self, trouble: StoreTrouble) -> None:
        """Write the record in place. Without it, the log still has everything."""
        self._trouble = trouble
        plain = {**trouble.plain(), "supervisor": str(ProcessIdentity.of(os.getpid()))}
        self._write(json.dumps(plain, ensure_ascii=False).encode("utf-8", errors="replace"))

    def _write(self, text: bytes) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(self._record, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(fd, text.ljust(RECORD_BYTES), 0)
            finally:
                os.close(fd)
