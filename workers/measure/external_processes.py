"""The memory of external processes on a device, now and at their recent peak. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

#: How long the peak of an external process counts, in seconds. A notebook that frees its memory between two cells
#: soon needs it again, so a job must not take it.
REMEMBER_S = 300.0


class ExternalProcesses:
    """Remembers the recent peak of each external process on one device, for as long as the process lives."""

    def __init__(self, remember_s: float = REMEMBER_S) -> None:
        self._remember_s = remember_s
        #: The samples of each process that still count, ordered by time. The sizes decrease, so the first is the peak.
        self._looks: dict[int, deque[tuple[float, int]]] = {}

    def note(self, processes: Mapping[int, int | None], ours: Collection[int], now_s: float) -> dict[int, int]:
        """Record a sample of all *processes*, and return the recent peak of each external process, in bytes.

        The result has no entry for a process whose memory the driver does not report. Its memory is part of the
        device's used bytes.
        """
        held = {pid: used for pid, used in processes.items() if pid not in ours and used is not None}
        self._looks = {pid: self._with(self._looks.get(pid, deque()), used, now_s) for pid, used in held.items()}
        return {pid: looks[0][1] for pid, looks in self._looks.items()}

    def _with(self, looks: deque[tuple[float, int]], used: int, now_s: float) -> deque[tuple[float, int]]:
        """Add a sample. Drop older samples that are not larger, since they cannot be the peak, and expired samples."""
        while looks and looks[-1][1] <= used:
            looks.pop()
        looks.append((now_s, used))
        while now_s - looks[0][0] > self._remember_s:
            looks.popleft()
        return looks


def external_bytes(
    *,
    used: int,
    processes: Mapping[int, int | None],
    ours: Collection[int],
    external_processes: Mapping[int, int],
    leased: int,
) -> int:
    """Return the bytes of a device that anything but this host's runs uses now or used recently.

    Args:
        used: Bytes that are not free, as the device reports them.
        processes: Bytes used by each process on the device; None where the driver does not report them.
        ours: The pids of the runs of this host, of all its workers.
        external_processes: The recent peak of each external process (:meth:`ExternalProcesses.note`).
        leased: The sum of the leases of the runs whose memory the driver does not report.

    """
    known = sum(held for held in processes.values() if held is not None)
    unnamed = max(0, used - known)  # the driver's own memory, contexts of dead processes, and unreported processes
    unreported = {pid for pid, held in processes.items() if held is None}
    if unreported and unreported <= set(ours):
        unnamed = max(0, unnamed - leased)  # the leases are counted elsewhere, and this memory belongs to them
    # If an external process is unreported too, the memory cannot be divided, so all of it counts as external.
    return unnamed + sum(external_processes.values())
