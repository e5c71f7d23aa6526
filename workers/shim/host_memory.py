"""Whether the kernel has killed processes for lack of host memory, and how much was available. Standard library only.

The kernel counts what it has killed: in ``memory.events`` for a control group (cgroup v2), else in ``/proc/vmstat`` for
the whole host. Every account can read both, unlike the log of the kernel. The counts have no pids. So a kill counts as
the reason of an end only if it was shortly before the end, and if the process or its shell was killed by SIGKILL.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time

#: The files of the kernel. The group is that of this process, where cgroup v2 is mounted at its usual place.
OWN_GROUP, GROUPS = "/proc/self/cgroup", "/sys/fs/cgroup"
EVENTS, HOST_EVENTS, MEMORY = "memory.events", "/proc/vmstat", "/proc/meminfo"
#: Most bytes of such a file that are read.
MAX_BYTES = 65536
#: Shortest time between two readings, in seconds.
STEP_S = 1.0
#: Longest time from a kill to the end of the run that counts as its result, in seconds. The kernel frees the memory of
#: a large process for some seconds before the process is gone.
RECENT_S = 30.0
#: The exit statuses of a process that SIGKILL has ended, and of a shell whose child it has ended.
KILLED = frozenset({-signal.SIGKILL, 128 + signal.SIGKILL})
#: The reason of such an end.
RAN_OUT, LIMIT_REACHED = "the host ran out of memory", "the processes of its control group reached their memory limit"


@functools.cache
def opened() -> tuple[int, int]:
    """Return the open files with the counts and with the memory of the host; -1 for one that cannot be read.

    The fork server opens them, for all its shims.
    """
    path = HOST_EVENTS
    with contextlib.suppress(OSError, StopIteration), open(OWN_GROUP, encoding="utf-8", errors="replace") as file:
        own = next(line[3:].strip() for line in file if line.startswith("0::"))
        of_group = os.path.join(GROUPS, own.strip("/"), EVENTS)
        path = of_group if os.path.exists(of_group) else path
    return _open(path), _open(MEMORY)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


class HostMemory:
    """The memory of this host while a run goes on."""

    def __init__(self, files: tuple[int, int] | None = None) -> None:
        self._events, self._memory = opened() if files is None else files
        self._counted = self._counts()
        #: When the last kill was noticed, on the monotonic clock, and the words about it.
        self._killed_at_s, self._reason = -RECENT_S, ""
        #: The words about the memory before that, and when to read again.
        self._words, self._next_s = "", time.monotonic() + STEP_S

    def poll(self) -> None:
        """Read the counts and the memory, at most once in ``STEP_S`` seconds."""
        if time.monotonic() >= self._next_s:
            self._read()

    def words(self) -> str:
        """Return how much host memory there was at the last reading; empty if it is unknown."""
        return self._words or self._available()

    def reason(self, status: int | None) -> str:
        """Return why the kernel has ended a run with this exit *status*; empty if there is no sign that it has."""
        if status not in KILLED:
            return ""
        self._read()
        return self._reason if time.monotonic() - self._killed_at_s < RECENT_S else ""

    def _read(self) -> None:
        now_s, (kills, limits) = time.monotonic(), self._counts()
        if kills > self._counted[0]:
            reason = LIMIT_REACHED if limits > self._counted[1] else RAN_OUT
            self._killed_at_s, self._reason = now_s, f"{reason}{self.words()}"
        else:
            self._words = self._available()
        self._counted, self._next_s = (kills, limits), now_s + STEP_S

    def _counts(self) -> tuple[int, int]:
        """Return how many processes the kernel has killed, and how often a limit of the control group was reached."""
        kills, limits = _numbers(self._events, b"oom_kill", b"oom")
        return kills or 0, limits or 0

    def _available(self) -> str:
        available, total = _numbers(self._memory, b"MemAvailable:", b"MemTotal:")
        if available is None or total is None:
            return ""
        return f" ({size_of(available * 1024)} of {size_of(total * 1024)} available)"


def _numbers(fd: int, *names: bytes) -> list[int | None]:
    """Return the numbers after *names* in an open file of the kernel; None for one that it does not have.

    It reads no other line: ``/proc/vmstat`` has 190, which took a fifth of a shim's time.
    """
    text = b"\n"
    with contextlib.suppress(OSError):
        while len(text) < MAX_BYTES and (part := os.pread(fd, MAX_BYTES, len(text) - 1)):
            text += part
    found = (text.partition(b"\n" + name + b" ")[2].split(maxsplit=1)[:1] for name in names)
    return [int(words[0]) if words and words[0].isdigit() else None for words in found]


def adjust_oom_score(adjustment: int, pid: int | str = "self") -> None:
    """Have the kernel end the process *pid* and its later children sooner, when host memory runs out.

    *adjustment* is added to what the kernel counts of each process, in thousandths of the memory. Less than before is
    the right of root, and is left out for others.
    """
    with contextlib.suppress(OSError):
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"%d" % adjustment)
        finally:
            os.close(fd)


def size_of(size_bytes: int) -> str:
    """Return a size in words. The functions of the package for that need more than the standard library."""
    for unit_bytes, letter in ((2**30, "G"), (2**20, "M")):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f}".removesuffix(".0") + letter
    return f"{size_bytes}B"
