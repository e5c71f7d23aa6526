"""The memory of external processes on a device: what they use now, and what they freed a moment ago. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping


class ExternalProcesses:
    """Counts the memory of each external process on one device, for as long as the process lives.

    A notebook that frees its memory between two cells soon needs it again, so a job should not take it at once. Freed
    memory therefore keeps counting and halves every *half_life_s* seconds. With None, freed memory does not count.
    """

    def __init__(self, half_life_s: float | None) -> None:
        self._half_life_s = half_life_s
        #: The bytes that count for each process.
        self._counted: dict[int, float] = {}
        self._at_s = 0.0

    def note(self, processes: Mapping[int, int | None], ours: Collection[int], now_s: float) -> dict[int, int]:
        """Record a sample of all *processes*, and return the bytes that count for each external process.

        The result has no entry for a process whose memory the driver does not report. Its memory is part of the
        device's used bytes.
        """
        left = 0.0 if self._half_life_s is None else 0.5 ** ((now_s - self._at_s) / self._half_life_s)
        self._at_s = now_s
        self._counted = {
            pid: used + left * max(0.0, self._counted.get(pid, 0.0) - used)
            for pid, used in processes.items()
            if pid not in ours and used is not None
        }
        return {pid: int(counted) for pid, counted in self._counted.items()}


def external_bytes(
    *,
    used: int,
    processes: Mapping[int, int | None],
    ours: Collection[int],
    external_processes: Mapping[int, int],
    leased: int,
) -> int:
    """Return the bytes of a device that count for anything but this host's runs.

    Args:
        used: Bytes that are not free, as the device reports them.
        processes: Bytes used by each process on the device; None where the driver does not report them.
        ours: The pids of the runs of this host, of all its workers.
        external_processes: The bytes that count for each external process (:meth:`ExternalProcesses.note`).
        leased: The sum of the leases of the runs whose memory the driver does not report.

    """
    known = sum(held for held in processes.values() if held is not None)
    unnamed = max(0, used - known)  # the driver's own memory, contexts of dead processes, and unreported processes
    unreported = {pid for pid, held in processes.items() if held is None}
    if unreported and unreported <= set(ours):
        unnamed = max(0, unnamed - leased)  # the leases are counted elsewhere, and this memory belongs to them
    # If an external process is unreported too, the memory cannot be divided, so all of it counts as external.
    return unnamed + sum(external_processes.values())
