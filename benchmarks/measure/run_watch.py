"""Observes from outside when a worker has the store's answer that a run may start, by its next step.

A worker creates the directory of a run when it has claimed the job. Right after the store has answered that the run may
start, it writes the shim's spec there (``Runner._spawn``), first under a temporary name. inotify reports that. The
file's own time is too coarse: it is that of the kernel's last tick, some milliseconds before.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from collections.abc import Iterator
from pathlib import Path

#: The name of the floor of this figure. Earlier reports, which have the store's timestamp instead, use another name.
GRANTED = "durable LPUSH, a BLPOP has it"
#: Files that are written only after the store's answer: those of the worker, then those of the shim.
AFTER = frozenset({"spec", "pid", "start", "exit", "log"})
_CREATED, _MOVED_HERE = 0x100, 0x80
_EVENT = struct.Struct("iIII")
_READ_BYTES = 65_536
#: Levels below the runs: the directory of a job, that of a run, the files.
_JOB, _RUN, _FILE = range(3)


class RunWatch:
    """Watches *runs* for the next run that is started there, from the creation of the object on."""

    def __init__(self, runs: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._sure(self._libc.inotify_init1(os.O_CLOEXEC))
        self._places: dict[int, tuple[Path, int]] = {}
        self._watch(runs, _JOB)

    def close(self) -> None:
        """Stop watching."""
        os.close(self._fd)

    def may_start(self, timeout_s: float = 120.0) -> float:
        """Return when a run was seen to be allowed to start, in seconds since 1970: never before its worker knew it.

        Raises:
            TimeoutError: there was none in time.
        """
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            if any(self._is_sign(*each) for each in self._events()):
                return time.time()
        raise TimeoutError(f"no run was started within {timeout_s:g} s")

    def _events(self) -> Iterator[tuple[Path, int, str]]:
        """Yield the events: the directory, its level, and the name in it."""
        found, place = os.read(self._fd, _READ_BYTES), 0
        while place < len(found):
            watch, _, _, length = _EVENT.unpack_from(found, place)
            place += _EVENT.size + length
            if length and watch in self._places:
                yield *self._places[watch], os.fsdecode(found[place - length : place].rstrip(b"\0"))

    def _is_sign(self, directory: Path, depth: int, name: str) -> bool:
        """Return whether a file shows that a run may start. A new directory is watched, and its content is checked."""
        if depth == _FILE:
            return name.removeprefix(".").partition(".")[0] in AFTER
        if depth == _JOB and not name.isdigit():
            return False
        below = directory / name
        try:
            self._watch(below, depth + 1)
            return any(self._is_sign(below, depth + 1, each.name) for each in below.iterdir())
        except (FileNotFoundError, NotADirectoryError):  # already removed
            return False

    def _watch(self, directory: Path, depth: int) -> None:
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(directory), _CREATED | _MOVED_HERE)
        self._places[self._sure(watch)] = directory, depth

    @staticmethod
    def _sure(number: int) -> int:
        if number < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return number
