"""Processes on a device that the queue did not start: what each holds, and held a moment ago. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

#: How long a stranger's peak is held against the device, in seconds: a notebook that has just freed its
#: memory between two cells will want it back, and must not find our job there.
REMEMBER_S = 300.0


@dataclass(frozen=True, slots=True)
class _Peak:
    bytes: int
    at_s: float


class Strangers:
    """Remembers each stranger on one device at its recent peak, for as long as it lives."""

    def __init__(self, remember_s: float = REMEMBER_S) -> None:
        self._remember_s = remember_s
        self._peaks: dict[int, _Peak] = {}

    def note(self, processes: Mapping[int, int | None], ours: Collection[int], now_s: float) -> dict[int, int]:
        """Take a look at the device and return what each stranger must be counted with, in bytes.

        A stranger of which the driver does not say what it holds is not in the result: its memory is
        in the device's used bytes all the same.
        """
        held = {pid: used for pid, used in processes.items() if pid not in ours and used is not None}
        self._peaks = {pid: self._later(self._peaks.get(pid), used, now_s) for pid, used in held.items()}
        return {pid: peak.bytes for pid, peak in self._peaks.items()}

    def _later(self, before: _Peak | None, used: int, now_s: float) -> _Peak:
        if before is None or used >= before.bytes or now_s - before.at_s > self._remember_s:
            return _Peak(used, now_s)
        return before


def foreign_bytes(
    *,
    used: int,
    processes: Mapping[int, int | None],
    ours: Collection[int],
    strangers: Mapping[int, int],
    leased: int,
) -> int:
    """Return the bytes of a device that are held, or about to be held again, by anybody but our runs.

    Args:
        used: Bytes that are not free, by the device's own figure.
        processes: What each process on the device holds; None where the driver does not say.
        ours: The pids of our runs, whichever worker of this host leads them.
        strangers: What each stranger is to be counted with (:meth:`Strangers.note`).
        leased: The sum of the leases of our runs of which the driver does not say what they hold.

    """
    known = sum(held for held in processes.values() if held is not None)
    unnamed = max(0, used - known)  # the driver's own, contexts of dead processes, and whatever is not told
    if any(pid in ours and held is None for pid, held in processes.items()):
        unnamed = max(0, unnamed - leased)  # ours is among it, and stands in the ledger already
    return unnamed + sum(strangers.values())
