"""What can go wrong between a door and its store."""

from __future__ import annotations


class DoorError(Exception):
    """The store did not do what it was asked for. Nobody outside the queue meets one: see ``connect.translated``."""


class Gone(DoorError):
    """No connection, or no answer in time: whether a command was done nobody knows."""


class Said(DoorError):
    """The store answers with an error; its text begins with the store's code for it, such as ``OOM``."""


class NotLetIn(Said):
    """The store does not take the password, or wants none."""


class NoStore(DoorError):
    """What answers does not speak the store's language."""
