"""The audit log of the service: a change is written down before it is made, and goes to the history afterwards.

A change waits for its line in a file, not for the history database, which may be away while the queue goes on. If the
line cannot be written, the change is refused. ``drain`` moves the lines to the history.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock, SystemClock, to_epoch_ms
from gpuqueue.codec.access import decode_audit_entry, encode_audit_entry
from gpuqueue.errors import GpuQueueError, HistoryUnreachable, Unreachable, Unreadable
from gpuqueue.model.audit import AuditEntry, AuditOutcome, entry_of
from gpuqueue.model.caller import Caller
from gpuqueue.service.identity.audit_file import AuditFile, free_files, lines_of

if TYPE_CHECKING:
    from gpuqueue.history.database import HistoryDatabase

log = logging.getLogger(__name__)

#: Most bytes of entries that wait for the history. Some 800 000 changes; beyond, changes are refused.
MOST_BYTES = 256 * 2**20
#: Entries in one transaction of the history.
_AT_ONCE = 1000
#: Seconds between two drains.
EVERY_S = 1.0


class Change:
    """A change in progress. The code that makes the change may add the jobs that it affects."""

    def __init__(self, entry: AuditEntry) -> None:
        self.entry = entry

    def concerns(self, *jobs: str) -> None:
        """Set the jobs, where they are known only afterwards, as with a submit."""
        self.entry = replace(self.entry, jobs=jobs)

    def add_detail(self, **detail: str) -> None:
        """Set the details. They must hold no environment, no arguments and no secret of a token."""
        self.entry = replace(self.entry, detail=detail)


class AuditJournal:
    """The journal below one directory. Threads may share an instance, and processes the directory."""

    def __init__(self, directory: Path, clock: Clock | None = None, *, most_bytes: int = MOST_BYTES) -> None:
        self._directory = directory
        self._clock = clock or SystemClock()
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._file: AuditFile | None = None
        self._numbers = count()
        self._waiting_bytes = sum(path.stat().st_size for path in directory.glob("*.jsonl"))

    @contextmanager
    def change(
        self, caller: Caller, action: str, *, jobs: tuple[str, ...] = (), detail: Mapping[str, str] | None = None
    ) -> Iterator[Change]:
        """Write down a change before the body makes it, and its outcome after the body.

        An error of the body becomes the outcome: ``refused`` if it says that the request cannot be granted, else
        ``failed``. *detail* must hold no environment, no arguments and no token.

        Raises:
            Unreachable: the entry cannot be written. The body has not run.

        """
        made = Change(
            entry_of(caller, action, entry_id=self._new_id(), at=self._clock.now(), jobs=jobs, detail=detail or {})
        )
        self._begin(made.entry)
        try:
            yield made
        except GpuQueueError as error:
            outcome = AuditOutcome.FAILED if isinstance(error, (Unreachable, Unreadable)) else AuditOutcome.REFUSED
            self._end(made.entry, outcome, str(error))
            raise
        except BaseException as error:
            self._end(made.entry, AuditOutcome.FAILED, type(error).__name__)
            raise
        self._end(made.entry, AuditOutcome.DONE, None)

    def refused(
        self,
        caller: Caller,
        action: str,
        reason: str,
        *,
        jobs: tuple[str, ...] = (),
        detail: Mapping[str, str] | None = None,
    ) -> None:
        """Write down a change that *caller* has no right to."""
        entry = entry_of(caller, action, entry_id=self._new_id(), at=self._clock.now(), jobs=jobs, detail=detail or {})
        self._end(entry, AuditOutcome.REFUSED, reason)

    def drain(self, database: HistoryDatabase) -> int:
        """Move the entries to the history, and return their number. Entries stay until they are stored.

        Raises:
            HistoryUnreachable: the history cannot be written now.

        """
        with self._lock:
            current, self._file = self._file, None
        if current is not None:
            current.close()
        moved = 0
        for path, fd in free_files(self._directory):
            try:
                moved += self._move(path, fd, database)
            finally:
                os.close(fd)
        return moved

    def keep_drained(self, database: HistoryDatabase, stop: threading.Event, every_s: float = EVERY_S) -> None:
        """Drain until *stop* is set, and once more then. Runs in a thread of the service."""
        away = False
        while True:
            ending = stop.wait(every_s)
            try:
                self.drain(database)
                away = False
            except (HistoryUnreachable, OSError) as error:
                if not away:
                    log.warning("the audit log waits in %s: %s", self._directory, error)
                away = True
            if ending:
                return

    def _move(self, path: Path, fd: int, database: HistoryDatabase) -> int:
        lines, moved = lines_of(fd), 0
        while chunk := list(islice(lines, _AT_ONCE)):
            entries = [entry for line in chunk if (entry := _read(path, line)) is not None]
            if entries:
                database.write_audit(entries)
            moved += len(entries)
        size_bytes = os.fstat(fd).st_size
        path.unlink()
        with self._lock:
            self._waiting_bytes = max(0, self._waiting_bytes - size_bytes)
        return moved

    def _begin(self, entry: AuditEntry) -> None:
        try:
            self._append(entry)
        except OSError as error:
            raise Unreachable(
                f"the audit log cannot be written, so nothing is changed: {error.strerror or error}: see the log of "
                "the service"
            ) from error

    def _end(self, entry: AuditEntry, outcome: AuditOutcome, reason: str | None) -> None:
        try:
            self._append(replace(entry, outcome=outcome, reason=reason), always=True)
        except OSError as error:  # the change is made: the entry stays without an outcome
            log.error("the outcome of %s by %s cannot be written: %s", entry.action, entry.account, error)  # noqa: TRY400 - no fault of the program

    def _append(self, entry: AuditEntry, *, always: bool = False) -> None:
        line = encode_audit_entry(entry)
        with self._lock:
            if not always and self._waiting_bytes + len(line) > self._most_bytes:
                raise OSError(errno.ENOSPC, f"{self._waiting_bytes} bytes wait for the history database")
            if self._file is None:
                self._file = AuditFile(self._directory)
            self._file.append(line)
            self._waiting_bytes += len(line) + 1

    def _new_id(self) -> str:
        """Return an id that sorts behind all earlier ones of this journal, also within one millisecond."""
        return f"{to_epoch_ms(self._clock.now()):013d}-{next(self._numbers):09d}-{secrets.token_hex(4)}"


def _read(path: Path, line: bytes) -> AuditEntry | None:
    try:
        return decode_audit_entry(line)
    except Unreadable as error:
        log.error("a damaged line in %s is left out of the audit log: %s", path, error)  # noqa: TRY400 - as above
        return None
