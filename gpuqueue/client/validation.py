"""Judges what a program hands to the client. The command line's words are checked by click and go the same way.

Python says little about a wrong type until it hurts, and then far from where it was said. Each function here returns
the value if it is usable, and raises BadRequest in words that name the argument if it is not. Pure.
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

#: Largest id that either store can hold.
MAX_ID = 2**53
#: Longest list that may be asked for.
MOST = 10**9


def job_id(value: object) -> int:
    """Return a job's id.

    Raises:
        BadRequest: it is no whole number.
        JobNotFound: no job can have it.

    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(f"a job's id is a whole number, not {brief(value)}")
    if not 0 < value <= MAX_ID:
        raise JobNotFound(f"there is no job {brief(value)}: ids are numbers from 1 up")
    return value


def job_name(value: object) -> JobName:
    """Return what a job's id, or its name as text, means: ``17``, ``"17_2"``, ``"17_5-9"``.

    Raises:
        BadRequest: it names no job.
        JobNotFound: no job can have it.

    """
    return JobName.parse(value) if isinstance(value, str) else JobName(job_id(value))


def one_job(value: object) -> JobName:
    """As :func:`job_name`, where one job must be meant.

    Raises:
        BadRequest: it names no job, or several.
        JobNotFound: no job can have it.

    """
    name = job_name(value)
    if name.part is not None and name.member is None:
        raise BadRequest(f"{name} is several jobs: name one, or all of {name.id}")
    return name


def whole_job(value: object) -> int:
    """Return the id of a job, or of all of an array.

    Raises:
        BadRequest: it names no job, or a part of an array.
        JobNotFound: no job can have it.

    """
    name = job_name(value)
    if name.part is not None:
        raise BadRequest(f"{name} is a part of an array, which is changed as a whole: say {name.id}")
    return name.id


def count(what: str, value: object) -> int:
    """Return how many of something to return at most.

    Raises:
        BadRequest: it is no whole number, or none from 0 to MOST.

    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise BadRequest(f"{what} must be a whole number from 0 to {MOST}, not {brief(value)}")
    return value


def text_or_none(what: str, value: object, *, most: int | None = None) -> str | None:
    """Return something to look for, of at most *most* characters.

    Raises:
        BadRequest: it is no text, none that a database could hold, or too long.

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
    """Return words of *kind* to look for.

    Raises:
        BadRequest: it is no list of such words.

    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise BadRequest(f"{what} must be a list of {kind.__name__}, not {brief(value)}")
    for each in value:
        if not isinstance(each, kind):
            raise BadRequest(f"{what} must be a list of {kind.__name__}, and {brief(each)} is none")
    return tuple(value)


def word(what: str, value: object, kind: type[Word]) -> Word:
    """Return the word of *kind* that is meant, given as such or as its text.

    Raises:
        BadRequest: it is none.

    """
    for each in kind:
        if value is each or (isinstance(value, str) and value == each.value):
            return each
    raise BadRequest(f"{what} must be one of {', '.join(str(each.value) for each in kind)}, not {brief(value)}")


def moment_or_none(what: str, value: object) -> datetime | None:
    """Return a moment that everybody understands alike.

    Raises:
        BadRequest: it is no time, or one without a zone.

    """
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise BadRequest(f"{what} must be a datetime, not {brief(value)}")
    if value.tzinfo is None:
        raise BadRequest(f"{what} has no time zone, so nobody knows which moment it is: give it one (astimezone())")
    return value


def seconds_or_none(what: str, value: object) -> float | None:
    """Return how long something may take, in seconds.

    Raises:
        BadRequest: it is no number of seconds.

    """
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or _is_nan(value):
        raise BadRequest(f"{what} must be a number of seconds, not {brief(value)}")
    return value


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)  # of a whole number beyond all floats it cannot be asked


def time_limit(value: object) -> float | None:
    """Return a job's time limit in seconds, given as such or as text such as ``2h``; its size is the spec's to judge.

    Raises:
        BadRequest: it is neither.

    """
    return parse_duration(value) if isinstance(value, str) else seconds_or_none("time_limit", value)


def early_signal(value: object) -> EarlySignal | None:
    """Return the signal that a job wants before its time limit, given as such or as text such as ``USR1@120``.

    Raises:
        BadRequest: it is neither.

    """
    if value is None or isinstance(value, EarlySignal):
        return value
    if not isinstance(value, str):
        raise BadRequest(f"signal must be text such as USR1@120, not {brief(value)}")
    return EarlySignal.parse(value)


def size_or_none(what: str, value: object) -> int | None:
    """Return a size in bytes, given as such or as text such as ``20G``.

    Raises:
        BadRequest: it is neither, or no size at all.

    """
    if value is None:
        return None
    if isinstance(value, str):
        return parse_bytes(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_BYTES:
        raise BadRequest(f"{what} must be a size in bytes or such as 20G, not {brief(value)}")
    return value


def duration_or_none(what: str, value: object) -> float | None:
    """Return a duration in seconds, given as such or as text such as ``2h``.

    Raises:
        BadRequest: it is neither.

    """
    return parse_duration(value) if isinstance(value, str) else seconds_or_none(what, value)


def words(what: str, value: object) -> tuple[str, ...]:
    """Return words of a command line. One text is refused: as a sequence it would be its letters.

    Raises:
        BadRequest: it is no list of texts.

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
        BadRequest: it is no list, or one holds a comma, by which they are told apart.

    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise BadRequest(f"{what} must be a list of values, not {brief(value)}")
    texts = tuple(map(str, value))
    for each in texts:
        if "," in each:
            raise BadRequest(f"{what} has the value {brief(each)}: a value of a sweep holds no comma")
    return texts


def environment(value: object) -> Mapping[str, str]:
    """Return the variables of a job; None stands for no variable. The spec judges each of them.

    Raises:
        BadRequest: it maps nothing to anything.

    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadRequest(f"env must be a mapping of names to values, not {brief(value)}")
    return value


def path_or_none(what: str, value: object) -> str | None:
    """Return a path as text.

    Raises:
        BadRequest: it is no path.

    """
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or "\0" in path:
        raise BadRequest(f"{what} must be a path, not {brief(value)}")
    return path
