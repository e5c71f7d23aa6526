"""What a run leaves in /dev/shm: shared memory and semaphores that no process uses. Standard library only.

A file there that is new since the run began is the run's if one of its processes was seen to have it open or mapped, or
if no other run was on the host meanwhile. It is left if no process of the host has it open or mapped at the end of the
run: then its owner gets a lease on it (fcntl(2)). Where a site wants files removed, both must hold: a file that no
process of the run was seen to use may be data for the next job, and one of two runs may be the other's.

Shared memory of System V (shmget(2)) has no file and is left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import time

from workers.shim.tree import descendants, slurp, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PLACE = "/dev/shm"  # noqa: S108 - where the C library keeps shared memory
#: The folder with an entry for each run of the host, from a run directory.
LIVE = "../../live"
#: Shortest time between two readings of what the processes use, and the longest time that one may take, in seconds.
#: Reading takes at most this share of the time.
STEP_S, READ_S, SHARE = 1.0, 0.5, 0.01
#: Longest time for the files at the end of a run, in seconds.
END_S = 5.0
#: Most bytes that are read of the memory map of a process.
MAX_MAPS_BYTES = 16 * 1024 * 1024
#: How many files are named, and the names that need no quotes in a shell.
MAX_NAMED, _PLAIN = 10, re.compile(r"[\w.+:@%=,-]{1,100}", re.ASCII)
#: The kinds of the notes (:class:`gpuqueue.model.run.NoteKind`).
LEFT, REMOVED = "left_shared_memory", "removed_shared_memory"


class SharedMemory:
    """The files of one run in /dev/shm. Make it before the run starts. *live* has an entry for each run of the host."""

    def __init__(self, live: str) -> None:
        self._before = frozenset(_files().values())
        self._live, self._changed_ns = live, _changed_ns(live)
        self._used, self._answers = set[str](), True
        #: The new files without a known user at the last reading, and when to read again.
        self._unknown: set[str] = set()
        self._next_s = 0.0

    def poll(self, top: int | None = None) -> None:
        """Read which new files the processes below *top* use, if there are others than at the last reading."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + STEP_S
            if self._new() - self._used - self._unknown:
                self.read(top)

    def read(self, top: int | None = None) -> None:
        """Read which of the new files the processes below *top*, by default this one, use."""
        if not self._answers or not self._new() - self._used:
            return
        began_s = time.monotonic()
        used = within(READ_S, lambda: _used_below(top))
        self._answers = used is not None  # else each further reading could leave one more thread that waits
        self._used |= used or set()
        self._unknown = self._new() - self._used
        self._next_s = began_s + max(STEP_S, (time.monotonic() - began_s) / SHARE)

    def candidates(self) -> dict[str, bool]:
        """Return the files that the run may have left, each with whether it may be removed."""
        new = self._new()
        is_alone = bool(new) and self._is_alone()
        return {name: is_alone and name in self._used for name in new if is_alone or name in self._used}

    def _new(self) -> set[str]:
        return {name for name, inode in _files().items() if inode not in self._before}

    def _is_alone(self) -> bool:
        """Return whether no other run was on the host since this one began."""
        with contextlib.suppress(OSError):
            return self._changed_ns == _changed_ns(self._live) and len(os.listdir(self._live)) <= 1
        return False


def notes(candidates: dict[str, bool], *, remove: bool) -> list[dict[str, Any]]:
    """Return the notes on those of *candidates* of this account that no process uses, removed before if so chosen."""
    files: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for name, is_removable in sorted(candidates.items()):
        with contextlib.suppress(OSError), _unused(name) as found:
            if found.st_uid == os.geteuid():
                kind = LEFT
                if remove and is_removable:
                    os.unlink(f"{PLACE}/{name}")
                    kind = REMOVED
                files.setdefault(kind, []).append(name)
                sizes[kind] = sizes.get(kind, 0) + found.st_size
    return [
        {
            "kind": kind,
            "items": [name for name in names if _PLAIN.fullmatch(name)][:MAX_NAMED],
            "count": len(names),
            "size_bytes": sizes[kind],
            "owner": _own_name(),
        }
        for kind, names in files.items()
    ]


def unused() -> dict[str, os.stat_result]:
    """Return the files that no process has open or mapped, of those that this account may examine."""
    found = {}
    for name in _files():
        with contextlib.suppress(OSError), _unused(name) as status:
            found[name] = status
    return found


@contextlib.contextmanager
def _unused(name: str) -> Iterator[os.stat_result]:
    """Hold a file in /dev/shm that no process of the host has open or mapped, so that none opens it meanwhile.

    Raises:
        OSError: it is in use, no file, or not one that this account may examine.

    """
    fd = os.open(f"{PLACE}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # ignored; the default would end this process
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield os.fstat(fd)
    finally:
        os.close(fd)


def _files() -> dict[str, int]:
    """Return the inode of each file in /dev/shm by its name."""
    with contextlib.suppress(OSError), os.scandir(PLACE) as entries:
        return {entry.name: entry.inode() for entry in entries if entry.is_file(follow_symlinks=False)}
    return {}


def _used_below(top: int | None) -> set[str]:
    """Return the names of the files in /dev/shm that the processes below *top* have open or mapped."""
    used = set[str]()
    for pid in descendants(top):
        with contextlib.suppress(OSError):
            maps = os.fsdecode(slurp(f"/proc/{pid}/maps", MAX_MAPS_BYTES))
            used |= {line.partition(f" {PLACE}/")[2] for line in maps.splitlines()}
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    used.add(os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix(f"{PLACE}/"))
    return used


def _changed_ns(directory: str) -> int | None:
    """Return when the entries of *directory* changed last, None if it cannot be read."""
    try:
        return os.stat(directory).st_mtime_ns
    except OSError:
        return None


def _own_name() -> str:
    import pwd  # noqa: PLC0415 - few runs leave something

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"
