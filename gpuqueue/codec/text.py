"""What all payloads have in common: their format, and how a value that makes no sense is told."""

from __future__ import annotations

import json
from datetime import datetime
from types import TracebackType
from typing import Any

from gpuqueue.errors import BadRequest, Unreadable

VERSION = 1

Plain = dict[str, Any]


def dump(plain: Plain) -> str:
    """Return *plain* as text: ASCII, without a space too many."""
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True)


class meaning:  # noqa: N801 - used as the function that contextlib would make of it, at four times the cost
    """Let values that no value of ours can have (an unknown word, a peak without a source) be one error.

    Raises:
        Unreadable: instead of ValueError and BadRequest.

    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Watch from here on."""

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        """Turn *error* into Unreadable."""
        if isinstance(error, (ValueError, BadRequest)):
            raise Unreadable(f"{self._what} cannot be read: {error}") from error


def iso(moment: datetime | None) -> str | None:
    """Return *moment* in the form of ISO 8601, to the millisecond."""
    return moment.isoformat(timespec="milliseconds") if moment else None
