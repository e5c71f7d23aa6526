"""Calendar reservations: devices that people have reserved, from a time until another. Pure.

They are not the reservations that the queue makes for jobs that have waited too long. They are stored beside the drains
of entry device (see ``drains.py``), and ``lua/shared/device_end.lua`` has their rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from gpuqueue.lazy.frozen import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CalendarReservation:
    """Devices, by their UUIDs, that are reserved for the jobs of some *users*. The account ``by`` reserved them.

    ``id`` is from the same row as the ids of jobs; 0 for one that is not stored yet.
    """

    id: int
    users: tuple[str, ...]
    begins_at: datetime
    ends_at: datetime
    why: str = ""
    by: str = ""
    devices: tuple[str, ...] = ()

    def holds(self, now: datetime) -> bool:
        """Return whether it has begun at the time *now*."""
        return self.begins_at <= now


def together(single: Iterable[CalendarReservation]) -> list[CalendarReservation]:
    """Return the reservations of single devices joined by their ids, the first ones first."""
    by_id: dict[int, CalendarReservation] = {}
    for entry in single:
        known = by_id.get(entry.id)
        by_id[entry.id] = entry if known is None else replace(known, devices=known.devices + entry.devices)
    return sorted(by_id.values(), key=lambda entry: (entry.begins_at, entry.id))
