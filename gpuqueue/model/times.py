"""Parses times: a duration from or before now, a time of day, a date, a datetime. Pure."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone

from gpuqueue.clock import from_iso
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.dependencies import AT_ONCE, BEGINS
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import MAX_S, parse_duration

#: Accepted forms of a time in the past, for help texts and error messages.
PASTS = "7d, 12h, yesterday, 2026-11-01 or 2026-11-01T09:00"
_HOUR = pattern(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
#: A time of day such as ``3am`` or ``3:30 pm``.
_HALF_DAY = pattern(r"(0?[1-9]|1[0-2])(?::([0-5][0-9]))? ?([ap])m")
#: A day in words -> its distance from today, in days. Such a day begins at midnight, in local time.
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MIDNIGHT = time()
#: ``parse_duration`` reads ``16:30`` as minutes and seconds, and ``16h30`` as hours and minutes. As a start they must
#: not pass as durations: the second is how some languages write a time of day.
_CLOCK = pattern(r"[0-9]+:[0-9]+(:[0-9]+)?|[0-9]+h[0-9]+")


def moment(what: str, value: object) -> datetime | None:
    """Return a time that has a time zone, or None. Text means a duration before now, or a date in local time.

    Raises:
        BadRequest: *value* is no time, or has no time zone.

    """
    if value is None:
        return None
    if isinstance(value, str):
        return _past(value)
    if not isinstance(value, datetime):
        raise BadRequest(f"{what} must be a datetime, not {brief(value)}")
    if value.tzinfo is None:
        raise BadRequest(f"{what} has no time zone: add one (astimezone())")
    try:
        value.astimezone(timezone.utc)
    except OverflowError:  # the first and the last day of all years in some time zones
        raise BadRequest(f"{what} is no time of our calendar in UTC") from None
    return value


def _past(text: str) -> datetime:
    if text.strip().lower() in _DAYS:
        return _on(datetime.now(timezone.utc), _DAYS[text.strip().lower()])
    try:
        return datetime.now(timezone.utc) - timedelta(seconds=parse_duration(text))
    except BadRequest:
        pass
    try:
        return _local(from_iso(text))
    except (ValueError, OverflowError):  # OverflowError: the year 1 in a time zone ahead of UTC
        raise BadRequest(f"{brief(text)} is no time: write {PASTS}") from None


def ordered(since: datetime | None, until: datetime | None) -> None:
    """Check that a period ends after it begins.

    Raises:
        BadRequest: *until* is not after *since*.

    """
    if since is not None and until is not None and until <= since:
        raise BadRequest("--until must be later than --since: nothing lies between them")


def end(what: str, value: object, *, now: datetime | None = None) -> datetime:
    """Return the time of an end, in the forms of :func:`begin`. *what* names the option in messages.

    Raises:
        BadRequest: *value* is not a time, is over, or is more than ten years away.

    """
    try:
        found = begin(value, now=now)
    except BadRequest as error:
        raise BadRequest(f"{what}: {str(error).replace(' to begin', '')}") from None
    if found is None:
        raise BadRequest(
            f"{what} {brief(str(value))} is over: give a time to come, such as 18:00, 2h or 2026-11-01T09:00"
        )
    return found


def begin(value: object, *, now: datetime | None = None) -> datetime | None:
    """Return the earliest start, given as a datetime, a duration from *now*, a time of day or a date.

    A time of day means its next occurrence in local time. None means now, and so does a time in the past.

    Raises:
        BadRequest: *value* is not a time, or is more than ten years away.

    """
    now = now or datetime.now(timezone.utc)
    found = _start(value, now) if isinstance(value, str) else moment("begin", value)
    if found is None or found <= now:
        return None
    if found - now > timedelta(seconds=MAX_S):
        raise BadRequest(f"{brief(str(value))} is more than ten years away: give an earlier time")
    return found.astimezone(timezone.utc)


def _start(text: str, now: datetime) -> datetime | None:
    raw = text.strip()
    if raw in AT_ONCE:
        return None
    day, _, rest = raw.lower().partition(" ")
    hour = _time_of_day(raw.lower())
    try:
        if day == "tomorrow":
            return _on(now, 1, _time_after(rest))
        if len(day) >= len("mon") and (fitting := [n for n, each in enumerate(_WEEKDAYS) if each.startswith(day)]):
            ahead = (fitting[0] - now.astimezone().weekday()) % 7
            found = _on(now, ahead, _time_after(rest))
            return found if found > now else _on(now, ahead + 7, _time_after(rest))
        if hour is not None:
            return _next(now, hour)
        try:
            return now + timedelta(seconds=parse_duration("" if _CLOCK.fullmatch(raw) else raw.removeprefix("now+")))
        except BadRequest:
            return _local(from_iso(raw))
    except (ValueError, OverflowError):
        raise BadRequest(f"{brief(text)} is no time to begin: write {BEGINS}") from None


def _time_of_day(text: str) -> time | None:
    """Return the time of day that *text* names, such as ``16:00``, ``3am`` or ``3:30 pm``, or None."""
    hour, half = _HOUR.fullmatch(text), _HALF_DAY.fullmatch(text)
    if hour is not None:
        return time(int(hour[1]), int(hour[2]), int(hour[3] or 0))
    return None if half is None else time(int(half[1]) % 12 + (12 if half[3] == "p" else 0), int(half[2] or 0))


def _time_after(text: str) -> time:
    """Return the time of day behind a day; midnight for none.

    Raises:
        ValueError: *text* is no time of day.

    """
    found = _time_of_day(text) if text else _MIDNIGHT
    if found is None:
        raise ValueError(text)
    return found


def _on(now: datetime, days: int, at: time = _MIDNIGHT) -> datetime:
    """Return a local time of day on the day *days* after that of *now*."""
    return _local(datetime.combine(now.astimezone().date() + timedelta(days=days), at))


def _local(moment: datetime) -> datetime:
    """Return *moment* in local time, which it is in if it has no time zone.

    In the hour that summer time skips, 02:30 is 03:30. In the hour that comes twice, it is the first 02:30.
    """
    found = moment.astimezone()
    if moment.tzinfo is not None or found.replace(tzinfo=None) == moment:
        return found
    return max(found, moment.replace(fold=1).astimezone())


def _next(now: datetime, at: time) -> datetime:
    """Return the next occurrence of a local time of day."""
    today = _on(now, 0, at)
    return today if today > now else _on(now, 1, at)
