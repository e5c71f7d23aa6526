"""Processes on a device that the queue did not start: what each holds, and held a moment ago. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

#: How long a stranger's peak is held against the device, in seconds: a notebook that has just freed its
#: memory between two cells will want it back, and must not find our job there.
REMEMBER_S = 300.0


class Strangers:
    """Remembers each stranger on one device at its recent peak, for as long as it lives."""

    def __init__(self, remember_s: float = REMEMBER_S) -> None:
        self._remember_s = remember_s
        #: Of each stranger the looks that still count, by time: each holds less than the one before it.
        self._looks: dict[int, deque[tuple[float, int]]] = {}

    def note(self, processes: Mapping[int, int | None], ours: Collection[int], now_s: float) -> dict[int, int]:
        """Take a look at the device and return what each stranger must be counted with, in bytes.

        A stranger of which the driver does not say what it holds is not in the result: its memory is
        in the device's used bytes all the same.
        """
        held = {pid: used for pid, used in processes.items() if pid not in ours and used is not None}
        self._looks = {pid: self._with(self._looks.get(pid, deque()), used, now_s) for pid, used in held.items()}
        return {pid: looks[0][1] for pid, looks in self._looks.items()}

    def _with(self, looks: deque[tuple[float, int]], used: int, now_s: float) -> deque[tuple[float, int]]:
        """Add a look: what is smaller and older than it can be the largest never more, what is too old neither."""
        while looks and looks[-1][1] <= used:
            looks.pop()
        looks.append((now_s, used))
        while now_s - looks[0][0] > self._remember_s:
            looks.popleft()
        return looks


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
    untold = {pid for pid, held in processes.items() if held is None}
    if untold and untold <= set(ours):
        unnamed = max(0, unnamed - leased)  # ours is among it, and stands in the ledger already
    # With an untold stranger beside it nobody can say whose it is: then all of it counts.
    return unnamed + sum(strangers.values())
