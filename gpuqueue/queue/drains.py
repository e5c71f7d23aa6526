"""Drains: why a device takes no new jobs, and since when. Pure.

Each origin drains a device separately, so that no origin can undo the drain of another: ``up`` undoes ``down``, and a
person undoes the drains of people and of quick deaths. A device takes jobs again when it has no drain left.

A drain may hold from a later time on, the **end** of the device. Until then the device takes only jobs that are over
before it (see ``lua/shared/device_end.lua``).
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum

from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.calendar import CalendarReservation
from gpuqueue.text.json_fields import Fields, loaded


class DrainOrigin(str, Enum):
    """The origin of a drain, the most important first."""

    #: A person drained the device; a person resumes it.
    PERSON = "person"
    #: Three runs in a row died quickly, and the device is the likely cause; a person resumes it.
    DEATHS = "deaths"
    #: The machine is going down; the next ``up`` resumes the device.
    DOWN = "down"
    #: The time of its host is over; the next ``up`` resumes the device.
    UNTIL = "until"

    def __str__(self) -> str:
        return self.value


#: Origins that a person can undo.
BY_PEOPLE = (DrainOrigin.PERSON, DrainOrigin.DEATHS)
#: Origins that a start of the host undoes.
BY_HOST = (DrainOrigin.DOWN, DrainOrigin.UNTIL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drain:
    """One drain of a device. ``by`` is the name of an account; None if it is unknown.

    ``begins_at`` is when it begins to hold. None: it has held since it was made.
    """

    origin: DrainOrigin
    why: str
    by: str | None = None
    at: datetime | None = None
    begins_at: datetime | None = None

    @property
    def since(self) -> datetime | None:
        """Return since or from when it holds; None if that is unknown."""
        return self.begins_at or self.at

    def holds(self, now: datetime) -> bool:
        """Return whether the device takes no job at the time *now* because of this drain."""
        return self.begins_at is None or self.begins_at <= now

    def __str__(self) -> str:
        """Return in a few words why the device is drained."""
        words = {
            DrainOrigin.DEATHS: "after quick deaths",
            DrainOrigin.DOWN: "for gpuqueue down",
            DrainOrigin.UNTIL: "at the end of its host's time",
        }
        return words.get(self.origin, f"by {self.by or 'somebody'}")


def drains(text: str | None) -> tuple[Drain, ...]:
    """Return the drains in the store's text about one device, the most important first; empty without a text.

    An unreadable text counts as a drain by ``down``, so that ``up`` removes it.
    """
    if text is None:
        return ()
    try:
        plain = loaded(text, "a drain")
        return tuple(_drain(origin, plain.plain(origin.value)) for origin in DrainOrigin if origin.value in plain)
    except Unreadable:
        return (Drain(origin=DrainOrigin.DOWN, why=text),)


def _drain(origin: DrainOrigin, plain: object) -> Drain:
    fields = Fields(plain, "a drain")
    return Drain(
        origin=origin,
        why=fields.text("why"),
        by=fields.text_or_none("by") or None,
        at=_moment(fields.text_or_none("at")),
        begins_at=_moment(fields.text_or_none("from")),
    )


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


def _moment(text: str | None) -> datetime | None:
    return from_epoch_ms(int(text)) if text is not None and re.fullmatch(r"[0-9]{1,14}", text) else None
