"""The audit log of the service: a change is written down before it is made, and goes to the history afterwards.

A change waits for its line in a file, not for the history database, which may be away while the queue goes on. If the
line cannot be written, the change is refused. ``drain`` moves the lines to the history.

A file has one JSON line for each entry, appended with one write, and belongs to the process that holds its lock. The
files of a process that has ended are free, and the next drain takes them. docs/internals/adr says why there are files.

What repeats is folded: the first entries of a period are written, and all others become one entry with their number.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.clock import Clock, SystemClock, to_epoch_ms
from gpuqueue.codec.wire import dump, from_plain, to_stored
from gpuqueue.errors import GpuQueueError, HistoryUnreachable, Unreachable, Unreadable
from gpuqueue.model.audit import AuditEntry, AuditOutcome, entry_of
from gpuqueue.model.caller import Caller, Via
from gpuqueue.service.identity.request_rate import network_of
from gpuqueue.text.json_fields import loaded

if TYPE_CHECKING:
    from gpuqueue.history.database import HistoryDatabase

log = logging.getLogger(__name__)

#: Most bytes of entries that wait for the history. Some 800 000 changes; beyond, changes are refused.
MOST_BYTES = 256 * 2**20
#: Entries in one transaction of the history.
_AT_ONCE = 1000
#: Seconds between two drains.
EVERY_S = 1.0
#: The period in which entries that repeat are folded, in seconds.
PERIOD_S = 300.0
#: Refusals of one account and action that have entries of their own in a period. Without an account it is one: anybody
#: can cause those.
FEW_REFUSALS = 5
#: Most kinds of entries that are counted at a time, and most jobs that a folded entry names. Refusals beyond are
#: counted by their action, without an account.
MOST_GROUPS, MOST_NAMED = 1000, 20
#: Begins a line that takes back the entry whose id follows: it is folded.
_FOLDED = b"folded "
#: Longest value of a detail, in characters.
MOST_DETAIL = 200
_SUFFIX = ".jsonl"
#: Longest line that is read, in bytes. A longer line is damaged.
_MOST_LINE_BYTES = 1024 * 1024
#: The start of a line that has the id of its entry: ``{"id":"`` and the id of :meth:`AuditJournal._new_id`.
_ID_END = len('{"id":"') + 32


class Change:
    """A change in progress. The code that makes the change may add the jobs that it affects."""

    def __init__(self, entry: AuditEntry) -> None:
        self.entry = entry

    def concerns(self, *jobs: str) -> None:
        """Set the jobs, where they are known only afterwards, as with a submit."""
        self.entry = replace(self.entry, jobs=jobs)

    def add_detail(self, **detail: str) -> None:
        """Add details. They must hold no environment, no arguments and no secret of a token."""
        self.set_detail(**self.entry.detail, **detail)

    def set_detail(self, **detail: str) -> None:
        """Set the details, in place of what was asked for."""
        self.entry = replace(self.entry, detail=_cut(detail))


@dataclass(slots=True)
class _Group:
    """Entries of one kind in one period: how many were written, and the others, of which the last one is kept."""

    begun_s: float
    written: int = 0
    first_at: datetime | None = None
    last: AuditEntry | None = None
    times: int = 0
    jobs: tuple[str, ...] = ()


class _Folds:
    """Counts entries that repeat. The memory is bounded, whatever callers send."""

    def __init__(self) -> None:
        #: The groups, the one that began first in front.
        self._groups: OrderedDict[Hashable, _Group] = OrderedDict()

    def takes(self, key: Hashable, few: int, entry: AuditEntry, now_s: float) -> bool:
        """Return whether *entry* is counted here. Otherwise it is one of the first *few* of *key*, and is written."""
        if key not in self._groups and len(self._groups) >= MOST_GROUPS:
            if entry.outcome is not AuditOutcome.REFUSED:
                return False
            key, entry = entry.action, replace(entry, account="", uid=None, token_id=None, address="")
        group = self._groups.setdefault(key, _Group(now_s))
        if group.written < few:
            group.written += 1
            return False
        group.times += 1
        group.first_at, group.last = group.first_at or entry.at, entry
        group.jobs = tuple(dict.fromkeys([*group.jobs, *entry.jobs]))[:MOST_NAMED]
        return True

    def forget(self, key: Hashable) -> None:
        """Forget the entry of *key* that could not be written."""
        self._groups.pop(key, None)

    def over(self, now_s: float) -> list[AuditEntry]:
        """Return the entries of the periods that have ended by *now_s*, and forget these periods."""
        found = []
        while self._groups:
            key, group = next(iter(self._groups.items()))
            if now_s - group.begun_s < PERIOD_S:
                break
            del self._groups[key]
            if group.last is not None and group.first_at is not None:
                times = {"times": str(group.times), "until": group.last.at.isoformat(timespec="milliseconds")}
                known = {} if group.last.outcome is AuditOutcome.REFUSED else group.last.detail  # the same for all
                detail = {**known, **times}
                found.append(replace(group.last, at=group.first_at, jobs=group.jobs, detail=detail))
        return found


class AuditJournal:
    """The journal below one directory. Threads may share an instance, and processes the directory."""

    def __init__(self, directory: Path, clock: Clock | None = None, *, most_bytes: int = MOST_BYTES) -> None:
        self._directory = directory
        self._clock = clock or SystemClock()
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._file: AuditFile | None = None
        self._folds = _Folds()
        self._numbers = count()
        self._waiting_bytes = sum(path.stat().st_size for path in directory.glob("*.jsonl"))

    @contextmanager
    def change(
        self, caller: Caller, action: str, *, jobs: tuple[str, ...] = (), detail: Mapping[str, str] | None = None
    ) -> Iterator[Change]:
        """Write down a change before the body makes it, and its outcome after the body.

        An error of the body becomes the outcome: ``refused`` if it says that the request cannot be granted, else
        ``failed``. *detail* must hold no environment, no arguments and no token. Refusals that repeat are folded.

        Raises:
            Unreachable: the entry cannot be written. The body has not run.

        """
        made = Change(self._new(caller, action, jobs, detail))
        self._begin(made.entry)
        try:
            yield made
        except GpuQueueError as error:
            outcome = AuditOutcome.FAILED if isinstance(error, (Unreachable, Unreadable)) else AuditOutcome.REFUSED
            if not (outcome is AuditOutcome.REFUSED and self._is_folded(caller, made.entry, str(error))):
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
        """Write down a change that *caller* has no right to, or a proof that is not valid.

        Those that repeat are folded. An entry that does not fit into the journal is left out: nothing was changed.
        """
        entry = replace(self._new(caller, action, jobs, detail), outcome=AuditOutcome.REFUSED, reason=reason)
        with self._lock:
            if self._folds.takes(*_of_refusal(caller, action), entry, self._clock.monotonic_s()):
                return
        try:
            self._append(_line_of(entry))
        except OSError as error:
            log.error("the refusal of %s for %s cannot be written: %s", action, caller.account, error)  # noqa: TRY400 - no fault of the program

    def noted(
        self, caller: Caller, action: str, *, jobs: tuple[str, ...] = (), detail: Mapping[str, str] | None = None
    ) -> None:
        """Write down what *caller* is about to read or to send, again and again: only the first one waits for it.

        Raises:
            Unreachable: the entry cannot be written.

        """
        entry = replace(self._new(caller, action, jobs, detail), outcome=AuditOutcome.DONE)
        key = (caller.account, caller.uid, caller.via, action, jobs, *sorted((detail or {}).items()))
        with self._lock:
            if self._folds.takes(key, 1, entry, self._clock.monotonic_s()):
                return
        try:
            self._begin(entry)
        except Unreachable:
            with self._lock:
                self._folds.forget(key)
            raise

    def drain(self, database: HistoryDatabase) -> int:
        """Move the entries to the history, and return their number. Entries stay until they are stored.

        Raises:
            HistoryUnreachable: the history cannot be written now.

        """
        self._write_folded(self._clock.monotonic_s())
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
        """Drain until *stop* is set, and once more then, with all that is folded. Runs in a thread of the service."""
        away = False
        while True:
            ending = stop.wait(every_s)
            if ending:
                self._write_folded(math.inf)
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
            folded = {line[len(_FOLDED) :].strip().decode("ascii", "replace") for line in chunk if _is_folded(line)}
            known = _newest(path, chunk)
            entries = [entry for entry in known if entry.id not in folded]
            if entries:
                database.write_audit(entries)
            begun_before = folded - {entry.id for entry in known}
            if begun_before:
                database.drop_audit(begun_before)
            moved += len(entries)
        size_bytes = os.fstat(fd).st_size
        path.unlink()
        with self._lock:
            self._waiting_bytes = max(0, self._waiting_bytes - size_bytes)
        return moved

    def _new(self, caller: Caller, action: str, jobs: tuple[str, ...], detail: Mapping[str, str] | None) -> AuditEntry:
        cut = _cut(detail or {})
        return entry_of(caller, action, entry_id=self._new_id(), at=self._clock.now(), jobs=jobs, detail=cut)

    def _is_folded(self, caller: Caller, entry: AuditEntry, reason: str) -> bool:
        """Return whether a change that was begun and refused is folded. Its line is taken back then."""
        refused = replace(entry, outcome=AuditOutcome.REFUSED, reason=reason)
        with self._lock:
            if not self._folds.takes(*_of_refusal(caller, entry.action), refused, self._clock.monotonic_s()):
                return False
        self._append_outcome(entry, f"{_FOLDED.decode('ascii')}{entry.id}")
        return True

    def _write_folded(self, now_s: float) -> None:
        with self._lock:
            found = self._folds.over(now_s)
        for each in found:
            self._append_outcome(each, _line_of(replace(each, id=self._new_id())))

    def _begin(self, entry: AuditEntry) -> None:
        try:
            self._append(_line_of(entry))
        except OSError as error:
            raise Unreachable(
                f"the audit log cannot be written, so nothing is changed: {error.strerror or error}: see the log of "
                "the service"
            ) from error

    def _end(self, entry: AuditEntry, outcome: AuditOutcome, reason: str | None) -> None:
        self._append_outcome(entry, _line_of(replace(entry, outcome=outcome, reason=reason)))

    def _append_outcome(self, entry: AuditEntry, line: str) -> None:
        try:
            self._append(line, always=True)
        except OSError as error:  # the change is made: the entry stays without an outcome
            log.error("the outcome of %s by %s cannot be written: %s", entry.action, entry.account, error)  # noqa: TRY400 - no fault of the program

    def _append(self, line: str, *, always: bool = False) -> None:
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


def _of_refusal(caller: Caller, action: str) -> tuple[Hashable, int]:
    """Return what refusals of *action* are counted by, and how many of them have entries of their own."""
    if caller.via is Via.ANONYMOUS:
        return (network_of(caller.address), action), 1
    return (caller.account, caller.uid, caller.via, action), FEW_REFUSALS


def _cut(detail: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value if len(value) <= MOST_DETAIL else f"{value[: MOST_DETAIL - 1]}…" for name, value in detail.items()
    }


def _is_folded(line: bytes) -> bool:
    """Return whether *line* takes an entry back, because it is folded."""
    return line.startswith(_FOLDED)


def _line_of(entry: AuditEntry) -> str:
    return dump(to_stored(entry))


def _newest(path: Path, lines: Sequence[bytes]) -> list[AuditEntry]:
    """Return the entries in *lines*, each once, with its outcome if that is there: most begin and end in one drain."""
    found: dict[bytes, AuditEntry] = {}
    for line in reversed(lines):
        start = line[:_ID_END]
        if start not in found and not _is_folded(line) and (entry := _read(path, line)) is not None:
            found[start] = entry
    return [*reversed(found.values())]


def _read(path: Path, line: bytes) -> AuditEntry | None:
    what = "an audit entry"
    try:
        entry: AuditEntry = from_plain(AuditEntry, loaded(line, what).whole_object(), what)
    except Unreadable as error:
        log.error("a damaged line in %s is left out of the audit log: %s", path, error)  # noqa: TRY400 - as above
        return None
    return entry


class AuditFile:
    """One file of the journal, open for appending and locked."""

    def __init__(self, directory: Path) -> None:
        """Make a new file in *directory*. Its name begins with the time, so that names are in the order of making.

        Raises:
            OSError: it cannot be made.

        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path, self._fd = _new_file(directory)
        self.size_bytes = 0

    def append(self, line: str) -> None:
        """Append *line*. It is whole in the file, or not at all.

        Raises:
            OSError: it cannot be written.

        """
        content = line.encode("ascii") + b"\n"
        written = os.write(self._fd, content)
        if written < len(content):  # the disk is full: take back what is there
            os.ftruncate(self._fd, self.size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size_bytes += written

    def close(self) -> None:
        """Close the file, which frees its lock. An empty file is deleted."""
        if not self.size_bytes:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)


def _new_file(directory: Path) -> tuple[Path, int]:
    """Make a file and lock it. A drain may lock it first, and then deletes it: another file is made."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        path = directory / f"{time.time_ns():020d}-{secrets.token_hex(4)}{_SUFFIX}"
        fd = os.open(path, flags, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return path, fd
        os.close(fd)


def free_files(directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files of *directory* that no process writes to, oldest first, each with an open descriptor.

    The file is locked while the descriptor is open. The caller closes it, and deletes the file when it is read.
    """
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:  # another process has drained it
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        if os.fstat(fd).st_nlink:
            yield path, fd
        else:
            os.close(fd)


def lines_of(fd: int) -> Iterator[bytes]:
    """Yield the lines of an open file of the journal."""
    with os.fdopen(os.dup(fd), "rb") as file:
        while line := file.readline(_MOST_LINE_BYTES):
            yield line
