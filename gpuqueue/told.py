"""What became of the messages about a job's end. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from gpuqueue.frozen import dataclass


class Outcome(str, Enum):
    """What became of a notice."""

    #: Whoever was to be told was told, at least once.
    SENT = "sent"
    #: It could not be sent, however often it was tried.
    GIVEN_UP = "given_up"
    #: It was meant for another end than the job came to.
    NOT_NEEDED = "not_needed"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """How far a notice has come: the one with this ``number`` among its job's. ``outcome`` None: it is still to go."""

    number: int
    tries: int = 0
    outcome: Outcome | None = None
    at: datetime | None = None
    trouble: str | None = None
