"""The control group of a run (cgroup v2): the kernel limits it, and ends all its processes at once.

Standard library only. The control group also contains processes that left the session and removed the token from their
environment, even after shim and guard were killed. Where :mod:`workers.launcher.cgroup_place` finds no place, runs have
none, and guard and token find the processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import NamedTuple

from workers.launcher.cgroup_place import limitable
from workers.shim.host_memory import RAN_OUT, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeVar

    N = TypeVar("N", int, float)

#: How long the processes of a killed group may take to disappear, and the time between two polls, in seconds.
GONE_S = 5.0
POLL_S = 0.01
#: The period over which the kernel measures processor time, in microseconds.
PERIOD_US = 100_000
#: More processes and threads than a program needs at a time.
MAX_PROCESSES = 32_768
#: Letters of the name of a control group.
NAME_LETTERS = 32
#: More processors than any host has.
MOST_CPUS = 1_000_000


class Limits(NamedTuple):
    """The most that one run may use of its host; None is no limit."""

    #: Host memory of all its processes together, in bytes.
    memory_bytes: int | None = None
    #: Processors that it keeps busy, on average.
    cpus: float | None = None
    #: Processes and threads that it has at a time.
    processes: int | None = None

    @property
    def are_set(self) -> bool:
        """Whether any limit is set."""
        return any(limit is not None for limit in self)

    @property
    def are_valid(self) -> bool:
        """Whether the values have the types of limits, and could be some."""
        memory_bytes, cpus, processes = self
        whole = all(number is None or (type(number) is int and number > 0) for number in (memory_bytes, processes))
        return whole and (cpus is None or (type(cpus) in {int, float} and 0 < cpus < MOST_CPUS))

    def within(self, others: Limits) -> Limits:
        """Return the smaller one of each of these limits and *others*."""
        return Limits(
            _smaller(self.memory_bytes, others.memory_bytes),
            _smaller(self.cpus, others.cpus),
            _smaller(self.processes, others.processes),
        )

    def unsupported(self, directory: str | None) -> str | None:
        """Return the controller that a limit needs and the groups in *directory* lack, or None if they have all."""
        there = set() if directory is None else limitable(directory)
        wanted = (("memory", self.memory_bytes), ("cpu", self.cpus), ("pids", self.processes))
        return next((name for name, limit in wanted if limit is not None and name not in there), None)


class RunGroup:
    """The control group of one run: a directory, whose name is a digest of the run's token.

    Everybody on the host sees the name, and the token is what proves to the queue that one is the run.
    """

    def __init__(self, directory: str, limits: Limits | None = None) -> None:
        self._directory = directory
        self._limits = limits or Limits()

    @classmethod
    def create(cls, base: str | None, token: str, limits: Limits | None = None) -> RunGroup | None:
        """Make the group of a new run, or return None if there can be none.

        Raises:
            OSError: the run would not be limited.

        """
        if base is None or not token:
            return None
        group = cls(os.path.join(base, name_of(token)), limits)
        try:
            os.mkdir(group._directory)
        except OSError:
            if group._limits.are_set:
                raise
            return None
        try:
            group._limit()
        except OSError:
            os.rmdir(group._directory)
            raise
        return group

    @classmethod
    def find(cls, base: str | None, token: str) -> RunGroup | None:
        """Return the group of an earlier run, or None if there is none."""
        directory = os.path.join(base, name_of(token)) if base else ""
        return cls(directory) if base and os.path.isdir(directory) else None

    def enter(self) -> None:
        """Move this process into the group. If the kernel refuses, the process stays where it is.

        Raises:
            OSError: the kernel refuses, and the run would not be limited.

        """
        try:
            self._write("cgroup.procs", "0")
        except OSError:
            if self._limits.are_set:
                raise

    def shortage(self, available: str = "") -> str | None:
        """Return why the kernel has killed processes of the run for lack of host memory; empty if it has not.

        *available* are the words about the memory of the host at that time. None: the kernel does not count that for
        this group, because the groups above it do not share the memory controller.
        """
        try:
            with open(os.path.join(self._directory, "memory.events"), encoding="ascii") as file:
                events = {name: int(number) for name, number in (line.split() for line in file)}
        except OSError:
            return None
        except ValueError:
            return ""
        if not events.get("oom_kill"):
            return ""
        if events.get("oom") and self._limits.memory_bytes is not None:
            most = size_of(self._limits.memory_bytes)
            return f"it needed more host memory than the {most} that it may use on this host"
        return RAN_OUT + available

    def kill(self) -> None:
        """Kill all processes of the group at once, also those that begin meanwhile."""
        with contextlib.suppress(OSError):
            self._write("cgroup.kill", "1")

    def end(self) -> int:
        """Kill all processes of the group, wait until they are gone, remove the group; return how many there were."""
        try:
            found = len(self._pids())
            self._write("cgroup.kill", "1")
        except OSError:  # the group is gone
            return 0
        for _ in _until(GONE_S):
            with contextlib.suppress(OSError):
                os.rmdir(self._directory)
            if not os.path.isdir(self._directory):
                break
        return found

    def _limit(self) -> None:
        memory_bytes, cpus, processes = self._limits
        if processes is not None or "pids" in limitable(os.path.dirname(self._directory)):
            self._write("pids.max", str(processes or default_processes()))
        if memory_bytes is not None:
            self._write("memory.max", str(memory_bytes))
            # A run that has lost some of its processes rarely goes on, and often hangs.
            self._write("memory.oom.group", "1")
        if cpus is not None:
            self._write("cpu.max", f"{max(1000, round(cpus * PERIOD_US))} {PERIOD_US}")

    def _pids(self) -> list[str]:
        with open(os.path.join(self._directory, "cgroup.procs"), encoding="ascii") as file:
            return file.read().split()

    def _write(self, name: str, text: str) -> None:
        with open(os.path.join(self._directory, name), "w", encoding="ascii") as file:
            file.write(text)


def name_of(token: str) -> str:
    """Return the name of the control group of the run *token*."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()[:NAME_LETTERS]


def default_processes(pid_max: str = "/proc/sys/kernel/pid_max") -> int:
    """Return how many processes and threads a run may have by default: at most a quarter of those of the host."""
    with open(pid_max, encoding="ascii") as file:
        return min(MAX_PROCESSES, int(file.read()) // 4)


def _smaller(one: N | None, other: N | None) -> N | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _until(limit_s: float) -> Iterator[None]:
    """Yield once, and again every POLL_S seconds until *limit_s* seconds have passed."""
    deadline = time.monotonic() + limit_s
    yield
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        yield
