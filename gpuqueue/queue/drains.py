"""Drains: why a device takes no new jobs, and since when. Pure.

Each origin drains a device separately, so that no origin can undo the drain of another: ``up`` undoes ``down``, and a
person undoes the drains of people and of quick deaths. A device takes jobs again when it has no drain left.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum

from gpuqueue.clock import from_epoch_ms
from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.json_fields import Fields, loaded


class DrainOrigin(str, Enum):
    """The origin of a drain, the most important first."""

    #: A person drained the device; a person resumes it.
    PERSON = "person"
    #: Three runs in a row died quickly, and the device is the likely cause; a person resumes it.
    DEATHS = "deaths"
    #: The machine is going down; the next ``up`` resumes the device.
    DOWN = "down"

    def __str__(self) -> str:
        return self.value


#: Origins that a person can undo.
BY_PEOPLE = (DrainOrigin.PERSON, DrainOrigin.DEATHS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drain:
    """One drain of a device. ``by`` is the name of an account; None if it is unknown."""

    origin: DrainOrigin
    why: str
    by: str | None = None
    at: datetime | None = None

    def __str__(self) -> str:
        """Return in a few words why the device is drained."""
        words = {DrainOrigin.DEATHS: "after quick deaths", DrainOrigin.DOWN: "for gpuqueue down"}
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
    at = fields.text_or_none("at")
    return Drain(
        origin=origin,
        why=fields.text("why"),
        by=fields.text_or_none("by") or None,
        at=from_epoch_ms(int(at)) if at is not None and re.fullmatch(r"[0-9]{1,14}", at) else None,
    )
