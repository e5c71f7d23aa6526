"""Parses dependencies, start times and retries into the values of a spec."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from gpuqueue.client import validation
from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import pattern
from gpuqueue.model.dependencies import Dependency
from gpuqueue.model.retries import DEFAULT_ON, Retries, RetryOn
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import MAX_S, parse_duration

#: Accepted forms of a start time, for the metavar and the error message.
TIMES = "2h, now+2h, 16:00, 2026-11-01 or 2026-11-01T09:00"
_HOUR = pattern(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
#: ``parse_duration`` reads such a text as minutes and seconds. Here it must not pass as a duration.
_CLOCK = pattern(r"[0-9]+:[0-9]+(:[0-9]+)?")
#: The word that removes a value.
NONE = "none"


def dependencies(value: object) -> tuple[Dependency, ...]:
    """Return the dependencies given as ids, as texts such as ``12:any,13``, or as Dependency; one or many.

    Raises:
        BadRequest: *value* does not name jobs.

    """
    if value is None:
        return ()
    if isinstance(value, (int, str, Dependency)):
        return dependencies([value])
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise BadRequest(f"after must be the ids of jobs, not {brief(value)}")
    found: list[Dependency] = []
    for each in value:
        found += Dependency.parse(each) if isinstance(each, str) else [_dependency(each)]
    return tuple(dict.fromkeys(found))


def _dependency(value: object) -> Dependency:
    return value if isinstance(value, Dependency) else Dependency(validation.job_id(value))


def begin(value: object, *, now: datetime | None = None) -> datetime | None:
    """Return the earliest start, given as a datetime, a duration from *now*, a time of day or a date.

    A time of day means its next occurrence in local time. None means now, and so does a time in the past.

    Raises:
        BadRequest: *value* is not a time, or is more than ten years away.

    """
    now = now or datetime.now(timezone.utc)
    moment = _moment(value, now) if isinstance(value, str) else validation.moment_or_none("begin", value)
    if moment is None or moment <= now:
        return None
    if moment - now > timedelta(seconds=MAX_S):
        raise BadRequest(f"{brief(str(value))} is more than ten years away: nothing begins so late")
    return moment.astimezone(timezone.utc)


def _moment(text: str, now: datetime) -> datetime | None:
    raw = text.strip()
    if raw in {"now", NONE}:
        return None
    hour = _HOUR.fullmatch(raw)
    try:
        if hour is not None:
            local = now.astimezone()
            then = datetime.combine(local.date(), datetime.min.time()).replace(
                hour=int(hour[1]), minute=int(hour[2]), second=int(hour[3] or 0)
            )
            today = then.astimezone()
            return today if today > now else (then + timedelta(days=1)).astimezone()
        try:
            return now + timedelta(seconds=parse_duration("" if _CLOCK.fullmatch(raw) else raw.removeprefix("now+")))
        except BadRequest:
            return datetime.fromisoformat(raw).astimezone()
    except (ValueError, OverflowError):
        raise BadRequest(f"{brief(text)} is no time to begin: write {TIMES}") from None


def retries(times: object, on: object) -> Retries:
    """Return the retries of a job: their number and the endings that cause one.

    Raises:
        BadRequest: an argument is invalid, or endings are named without a number of retries.

    """
    count = Retries(times=times).times if isinstance(times, int) else validation.count("retries", times)
    if on is None or on == ():
        return Retries(times=count)
    if not count:
        raise BadRequest("say how many retries as well: --retries 3")
    if isinstance(on, str):
        return Retries(times=count, on=Retries.parse_on(on))
    return Retries(times=count, on=validation.words_of("retry_on", on, RetryOn) or DEFAULT_ON)


def other_retries(now: Retries, times: object, on: object) -> Retries:
    """Return the retries *now* with changes. None leaves a value unchanged. No retries means no endings either.

    Raises:
        BadRequest: as for :func:`retries`.

    """
    if times is None and on is None:
        return now
    if times is None:
        times = now.times
    return retries(times, now.on if on is None and times else on)
