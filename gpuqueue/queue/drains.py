"""Who keeps a device from new jobs, and why. Pure.

Each origin has a say of its own, so that none can lift what another one meant: ``up`` takes back what ``down`` did,
a person what people did and what quick deaths did. A device takes jobs again when nobody has a say left.
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
    """What a device is drained for; foremost first."""

    #: Somebody said so; somebody takes it back.
    PERSON = "person"
    #: Three runs in a row died on it at once, and not by their own fault; a person takes it back.
    DEATHS = "deaths"
    #: Its machine is going down; the next ``up`` takes it back.
    DOWN = "down"

    def __str__(self) -> str:
        return self.value


#: What a person can take back.
BY_PEOPLE = (DrainOrigin.PERSON, DrainOrigin.DEATHS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drain:
    """One say against new jobs on a device. ``by`` is an account's name; None where nobody wrote it down."""

    origin: DrainOrigin
    why: str
    by: str | None = None
    at: datetime | None = None

    def __str__(self) -> str:
        """Return in a few words what the device is drained for."""
        words = {DrainOrigin.DEATHS: "after quick deaths", DrainOrigin.DOWN: "for gpuqueue down"}
        return words.get(self.origin, f"by {self.by or 'somebody'}")


def drains(text: str | None) -> tuple[Drain, ...]:
    """Return what the store's text about one device says, foremost first; empty where there is none.

    A text that is no JSON object is of a version in which only ``down`` drained. Whatever it is, the device is drained.
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
        why=fields.text("why", ""),
        by=fields.text_or_none("by") or None,
        at=from_epoch_ms(int(at)) if at is not None and re.fullmatch(r"[0-9]{1,14}", at) else None,
    )
