"""Whether a disk of a run is nearly full."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpuqueue.system.disk_room import Room
from gpuqueue.system.timed_call import CallFailed, TimedCall
from gpuqueue.text.units import format_bytes

#: How often the disks of a run are checked, in seconds, and how long one check may take.
DISK_S, DISK_LIMIT_S = 10.0, 5.0


class DiskWatch:
    """Checks the disks of one run. A disk may not answer, so another thread reads what is free."""

    def __init__(self) -> None:
        self._call: TimedCall[str | None] | None = None
        self._at_s: float | None = None
        self._low: str | None = None

    def low(self, places: dict[str, str | None], low_bytes: int, now_s: float) -> str | None:
        """Return, as of the last check, which disk of *places* has fewer than *low_bytes* free; None if none has.

        On a small disk it is its usual share that should be free. A disk that cannot be read is left out.
        """
        if self._call is not None and self._call.done:
            try:
                self._low = self._call.wait()
            except (CallFailed, OSError):
                self._low = None
            self._call = None
        if self._call is None and (self._at_s is None or now_s - self._at_s >= DISK_S):
            self._at_s = now_s
            self._call = TimedCall(lambda: _low_of(places, low_bytes), DISK_LIMIT_S)
        return self._low


def _low_of(places: dict[str, str | None], low_bytes: int) -> str | None:
    for what, place in places.items():
        with contextlib.suppress(OSError):
            room = Room.of(Path(place)) if place is not None else None
            if room is not None and room.free_bytes < room.least_bytes(low_bytes):
                return f"the disk of its {what} is nearly full, with {format_bytes(room.free_bytes)} free"
    return None
