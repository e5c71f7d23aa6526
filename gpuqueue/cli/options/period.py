"""Parsing of times and periods: a duration before now, or a date."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import parse_duration

#: Examples for help texts and error messages.
EXAMPLES = "7d, 12h, 2026-11-01 or 2026-11-01T09:00"


def moment(text: str | None) -> datetime | None:
    """Return the time that *text* means: a duration before now, or an ISO date, in local time by default.

    Raises:
        BadRequest: *text* is neither.

    """
    if text is None:
        return None
    try:
        return datetime.now(timezone.utc) - timedelta(seconds=parse_duration(text))
    except BadRequest:
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):  # OverflowError: the year 1 in a time zone ahead of UTC
        raise BadRequest(f"{brief(text)} is no time: write {EXAMPLES}") from None


def ordered(since: datetime | None, until: datetime | None) -> None:
    """Check that a period ends after it begins.

    Raises:
        BadRequest: *until* is not after *since*.

    """
    if since is not None and until is not None and until <= since:
        raise BadRequest("--until must be later than --since: nothing lies between them")
