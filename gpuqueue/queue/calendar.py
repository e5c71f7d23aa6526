"""Calendar reservations: devices that people have reserved, from a time until another. Pure.

They are not the reservations that the queue makes for jobs that have waited too long. They are stored beside the drains
of entry device (see ``drains.py``), and ``lua/shared/device_end.lua`` has their rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.json_fields import Fields, loaded


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


def reservations_on(device: str, text: str | None) -> tuple[CalendarReservation, ...]:
    """Return the reservations in the store's *text* about a device, the first one first.

    An unreadable text holds none: it counts as a drain.
    """
    if text is None or '"calendar"' not in text:
        return ()
    try:
        return tuple(
            _reservation(device, Fields(entry, "a reservation")) for entry in loaded(text, "drains").each("calendar")
        )
    except (Unreadable, ValueError):
        return ()


def _reservation(device: str, entry: Fields) -> CalendarReservation:
    return CalendarReservation(
        id=int(entry.text("id")),
        users=tuple(entry.text("users").split(",")),
        begins_at=from_epoch_ms(int(entry.text("from"))),
        ends_at=from_epoch_ms(int(entry.text("until"))),
        why=entry.text("why"),
        by=entry.text("by"),
        devices=(device,),
    )


def together(single: Iterable[CalendarReservation]) -> list[CalendarReservation]:
    """Return the reservations of single devices joined by their ids, the first ones first."""
    by_id: dict[int, CalendarReservation] = {}
    for entry in single:
        known = by_id.get(entry.id)
        by_id[entry.id] = entry if known is None else replace(known, devices=known.devices + entry.devices)
    return sorted(by_id.values(), key=lambda entry: (entry.begins_at, entry.id))
