"""The times of repeating jobs: an expression of cron, in a time zone.

The library cronsim reads the expressions and decides what happens when clocks change. Its rules are those of Debian's
cron: docs/howto/repeating-jobs.md has them.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import brief

#: Words for expressions, as other crons know them.
WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
UTC = "UTC"
#: Fields of an expression. cronsim also takes seconds in front of them.
FIELDS = 5
#: Most passed times that are counted one by one. A time each minute passes this within a day.
MAX_COUNTED = 1_000
_LOCALTIME, _ZONES = Path("/etc/localtime"), "/zoneinfo/"


def read_times(text: str) -> str:
    """Return the expression that *text* is, or stands for.

    Raises:
        BadRequest: it is no expression, or no time ever matches it.

    """
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - lazy import: only repeating jobs need it

    words = text.split()
    if len(words) == 1 and words[0].startswith("@"):
        if words[0].lower() not in WORDS:
            raise BadRequest(f"{brief(text)} is no time of cron: there are {', '.join(WORDS)}")
        return WORDS[words[0].lower()]
    times = " ".join(words)
    if len(words) != FIELDS:
        raise BadRequest(
            f"{brief(text)} is no time of cron: write minute, hour, day, month and weekday in quotes, "
            "such as '0 3 * * *' for each day at 3:00"
        )
    try:
        next(CronSim(times, datetime.now(timezone.utc)))
    except CronSimError as error:
        what = str(error)
        raise BadRequest(f"{brief(text)} is no time of cron: {what[:1].lower()}{what[1:]}") from None
    except StopIteration:
        raise BadRequest(f"{brief(text)} is no time of cron: it never comes") from None
    return times


def zone_of(name: str) -> tzinfo:
    """Return the time zone *name*.

    Raises:
        BadRequest: there is none of this name on this machine.

    """
    if name.upper() == UTC:
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise BadRequest(
            f"this machine knows no time zone {brief(name)}: write one such as Europe/Berlin, or {UTC} "
            "(the names come with the system's package tzdata)"
        ) from None


def local_zone() -> str:
    """Return the name of the time zone of this machine; UTC if it has no name."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if not named:
        _, found, named = os.path.realpath(_LOCALTIME).partition(_ZONES)
        if not found:
            return UTC
    try:
        zone_of(named)
    except BadRequest:
        return UTC
    return UTC if named == f"Etc/{UTC}" else named


def next_time(times: str, zone: str, after: datetime) -> datetime | None:
    """Return the first time of the expression *times* after *after*, in UTC. None if there is none within 50 years."""
    from cronsim import CronSim  # noqa: PLC0415 - as above

    # When clocks are set back or forward, cronsim may return a time that is not later, or the same one twice.
    moments = (each.astimezone(timezone.utc) for each in CronSim(times, after.astimezone(zone_of(zone))))
    return next((each for each in moments if each > after), None)


def passed(times: str, zone: str, first: datetime, now: datetime) -> tuple[int, datetime, datetime | None]:
    """Return how many times have come from *first* to *now*, the last of them, and the one before it.

    *first* counts in any case. Beyond ``MAX_COUNTED`` the number is too small.
    """
    count, last, before = 1, first, None
    while (each := next_time(times, zone, last)) is not None and each <= now:
        count, last, before = count + 1, each, last
        if count == MAX_COUNTED:  # of the rest only the last two matter
            before, last = _last_two(times, zone, now) or (before, last)
            break
    return count, last, before


def _last_two(times: str, zone: str, now: datetime) -> tuple[datetime, datetime] | None:
    """Return the last two times until *now*."""
    for back in (timedelta(hours=3), timedelta(days=3), timedelta(days=100), timedelta(days=3000)):
        found: list[datetime] = []
        each = next_time(times, zone, now - back)
        while each is not None and each <= now and len(found) < MAX_COUNTED:
            found.append(each)
            each = next_time(times, zone, each)
        if len(found) > 1:
            return found[-2], found[-1]
    return None
