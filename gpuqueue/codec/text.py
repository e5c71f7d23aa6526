"""What all payloads have in common: their format, and how a value that makes no sense is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from gpuqueue.errors import BadRequest, Unreadable

VERSION = 1

Plain = dict[str, Any]


def dump(plain: Plain) -> str:
    """Return *plain* as text: ASCII, without a space too many."""
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True)


@contextmanager
def meaning(what: str) -> Iterator[None]:
    """Let values that no value of ours can have (an unknown word, a peak without a source) be one error.

    Raises:
        Unreadable: instead of ValueError and BadRequest.

    """
    try:
        yield
    except (ValueError, BadRequest) as error:
        raise Unreadable(f"{what} cannot be read: {error}") from error


def iso(moment: datetime | None) -> str | None:
    """Return *moment* in the form of ISO 8601, to the millisecond."""
    return moment.isoformat(timespec="milliseconds") if moment else None
