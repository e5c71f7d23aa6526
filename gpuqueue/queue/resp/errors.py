"""Errors between the built-in client and its store."""

from __future__ import annotations


class RespError(Exception):
    """The base of all client errors. They do not leave the queue package: see ``connect.translated``."""


class Gone(RespError):
    """No connection, or no answer in time. It is unknown whether the command has run."""


class ReplyError(RespError):
    """The store answered with an error. The text begins with the code of the error, such as ``OOM``."""


class NotLetIn(ReplyError):
    """Authentication failed."""


class NoStore(RespError):
    """The server does not speak the Redis protocol."""
