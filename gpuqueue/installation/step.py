"""One step of the installation: a thing that is there, missing, or other than it should be."""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class State(Enum):
    """Whether a step has to be done."""

    #: Already there.
    THERE = "there"
    MISSING = "missing"
    #: Something else is in its place.
    DIFFERS = "differs"


class Step(Protocol):
    """One thing that ``install`` makes and ``uninstall`` removes."""

    @property
    def name(self) -> str:
        """The name in the record of what was made."""

    @property
    def what(self) -> str:
        """The thing and its purpose, in words."""

    @property
    def lasting(self) -> bool:
        """Whether only ``uninstall --purge`` removes it."""

    def state(self) -> State:
        """Return whether it is there. Changes nothing."""

    def make(self) -> None:
        """Make it, or change it to what it should be."""

    def remove(self) -> None:
        """Remove it, if it is there."""
