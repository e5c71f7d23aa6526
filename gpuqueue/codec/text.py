"""Common to all payloads: the format of the text, and the error for an invalid value."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

from gpuqueue.errors import BadRequest, Unreadable

VERSION = 1

Plain = dict[str, Any]


def dump(plain: Plain) -> str:
    """Return *plain* as compact JSON in ASCII."""
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True)


class meaning:  # noqa: N801 - used as a function; one from contextlib would take four times as long
    """Turn the errors for invalid values, such as an unknown word or a peak without a source, into one error.

    Raises:
        Unreadable: instead of ValueError and BadRequest.

    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        """Raise Unreadable in place of *error*, if *error* is a ValueError or a BadRequest."""
        if isinstance(error, (ValueError, BadRequest)):
            raise Unreadable(f"{self._what} cannot be read: {error}") from error
