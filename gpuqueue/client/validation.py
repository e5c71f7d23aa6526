"""Validates the arguments of the client's methods.

Without these checks a wrong type would cause an error far from the call. Each function returns the value if it is
valid, and else raises BadRequest with a message that names the argument. The command line's arguments are checked by
click first and then pass through the same functions. Pure.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import TypeVar

from gpuqueue.errors import BadRequest, JobNotFound
from gpuqueue.model.job_ref import JobName
from gpuqueue.model.warning_signal import EarlySignal
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import MAX_BYTES, parse_bytes, parse_duration

Word = TypeVar("Word", bound=Enum)

#: Largest id that both the store and the history can hold.
MAX_ID = 2**53
#: Largest count that may be requested.
MOST = 10**9


def job_id(value: object) -> int:
    """Return a job's id.

    Raises:
        BadRequest: *value* is not a whole number.
        JobNotFound: no job can have this id.

    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(f"a job's id is a whole number, not {brief(value)}")
    if not 0 < value <= MAX_ID:
        raise JobNotFound(f"there is no job {brief(value)}: ids are numbers from 1 up")
    return value


def job_name(value: object) -> JobName:
    """Return the parsed name of a job, given as an id or as text: ``17``, ``"17_2"``, ``"17_5-9"``.

    Raises:
        BadRequest: *value* is not the name of a job.
        JobNotFound: no job can have this id.

    """
    return JobName.parse(value) if isinstance(value, str) else JobName(job_id(value))


def one_job(value: object) -> JobName:
    """Return the parsed name of exactly one job, given as for :func:`job_name`.

    Raises:
        BadRequest: *value* is not the name of a job, or names several.
        JobNotFound: no job can have this id.

    """
    name = job_name(value)
    if name.part is not None and name.member is None:
        raise BadRequest(f"{name} is several jobs: name one, or all of {name.id}")
    return name


def whole_job(value: object) -> int:
    """Return the id of a job or of a whole array.

    Raises:
        BadRequest: *value* is not the name of a job, or names a part of an array.
        JobNotFound: no job can have this id.

    """
    name = job_name(value)
    if name.part is not None:
        raise BadRequest(f"{name} is a part of an array, which is changed as a whole: say {name.id}")
    return name.id


def count(what: str, value: object) -> int:
    """Return a count.

    Raises:
        BadRequest: *value* is not a whole number from 0 to MOST.

    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise BadRequest(f"{what} must be a whole number from 0 to {MOST}, not {brief(value)}")
    return value


def text_or_none(what: str, value: object, *, most: int | None = None) -> str | None:
    """Return a text of at most *most* characters, or None.

    Raises:
        BadRequest: *value* is not text, is too long, or contains NUL or surrogates, which a database cannot hold.

    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadRequest(f"{what} must be text, not {brief(value)}")
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise BadRequest(f"{what} cannot be {brief(value)}: that is no text")
    if most is not None and len(value) > most:
        raise BadRequest(f"{what} must have at most {most} characters, not {len(value)}")
    return value


def words_of(what: str, value: object, kind: type[Word]) -> tuple[Word, ...]:
    """Return several members of the enum *kind*.

    Raises:
        BadRequest: *value* is not a list of members.

    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise BadRequest(f"{what} must be a list of {kind.__name__}, not {brief(value)}")
    for each in value:
        if not isinstance(each, kind):
            raise BadRequest(f"{what} must be a list of {kind.__name__}, and {brief(each)} is none")
    return tuple(value)


def word(what: str, value: object, kind: type[Word]) -> Word:
    """Return a member of the enum *kind*, given as the member or as its text.

    Raises:
        BadRequest: *value* is not a member.

    """
    for each in kind:
        if value is each or (isinstance(value, str) and value == each.value):
            return each
    raise BadRequest(f"{what} must be one of {', '.join(str(each.value) for each in kind)}, not {brief(value)}")


def moment_or_none(what: str, value: object) -> datetime | None:
    """Return a time that has a time zone, or None.

    Raises:
        BadRequest: *value* is not a datetime, or has no time zone.

    """
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise BadRequest(f"{what} must be a datetime, not {brief(value)}")
    if value.tzinfo is None:
        raise BadRequest(f"{what} has no time zone, so nobody knows which moment it is: give it one (astimezone())")
    return value


def seconds_or_none(what: str, value: object) -> float | None:
    """Return a number of seconds, or None.

    Raises:
        BadRequest: *value* is not a number, or is NaN.

    """
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or _is_nan(value):
        raise BadRequest(f"{what} must be a number of seconds, not {brief(value)}")
    return value


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)  # math.isnan raises on an int that is too large for a float


def time_limit(value: object) -> float | None:
    """Return a job's time limit in seconds, given in seconds or as text such as ``2h``. The spec checks its range.

    Raises:
        BadRequest: *value* is neither.

    """
    return parse_duration(value) if isinstance(value, str) else seconds_or_none("time_limit", value)


def early_signal(value: object) -> EarlySignal | None:
    """Return a job's early signal, given as an EarlySignal or as text such as ``USR1@120``, or None.

    Raises:
        BadRequest: *value* is neither.

    """
    if value is None or isinstance(value, EarlySignal):
        return value
    if not isinstance(value, str):
        raise BadRequest(f"signal must be text such as USR1@120, not {brief(value)}")
    return EarlySignal.parse(value)


def size_or_none(what: str, value: object) -> int | None:
    """Return a size in bytes, given in bytes or as text such as ``20G``, or None.

    Raises:
        BadRequest: *value* is neither, or is out of range.

    """
    if value is None:
        return None
    if isinstance(value, str):
        return parse_bytes(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_BYTES:
        raise BadRequest(f"{what} must be a size in bytes or such as 20G, not {brief(value)}")
    return value


def duration_or_none(what: str, value: object) -> float | None:
    """Return a duration in seconds, given in seconds or as text such as ``2h``, or None.

    Raises:
        BadRequest: *value* is neither.

    """
    return parse_duration(value) if isinstance(value, str) else seconds_or_none(what, value)


def words(what: str, value: object) -> tuple[str, ...]:
    """Return a list of words. A single text is refused, because as a sequence it would be its letters.

    Raises:
        BadRequest: *value* is not a list of texts.

    """
    if isinstance(value, str):
        raise BadRequest(f"{what} must be a list of words, not the text {brief(value)}: write [{brief(value)}]")
    if isinstance(value, bytes) or not isinstance(value, Sequence):
        raise BadRequest(f"{what} must be a list of words, not {brief(value)}")
    for each in value:
        if not isinstance(each, str):
            raise BadRequest(f"{what} must be a list of words, and {brief(each)} is no text")
    return tuple(value)


def values_of(what: str, value: object) -> tuple[str, ...]:
    """Return the values of a sweep as text.

    Raises:
        BadRequest: *value* is not a list, or a value contains a comma, which separates the values.

    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise BadRequest(f"{what} must be a list of values, not {brief(value)}")
    texts = tuple(map(str, value))
    for each in texts:
        if "," in each:
            raise BadRequest(f"{what} has the value {brief(each)}: a value of a sweep holds no comma")
    return texts


def environment(value: object) -> Mapping[str, str]:
    """Return the variables of a job. None means no variables. The spec checks each variable.

    Raises:
        BadRequest: *value* is not a mapping.

    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadRequest(f"env must be a mapping of names to values, not {brief(value)}")
    return value


def path_or_none(what: str, value: object) -> str | None:
    """Return a path as text, or None.

    Raises:
        BadRequest: *value* is not a path.

    """
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or "\0" in path:
        raise BadRequest(f"{what} must be a path, not {brief(value)}")
    return path
