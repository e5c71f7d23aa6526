"""Validates single values, for all who take them: Python programs, the command line, the settings. Pure.

Each function takes a value in any form that users type or programs pass, and returns it in the one form that the rest
of the code uses. It raises BadRequest with a message that names the value. Without these checks a wrong type would
cause an error far from the call. Names of jobs are in ``job_ref.py``, times in ``times.py``. ``JobSpec`` judges
combinations of values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import later
from gpuqueue.model.array import Array
from gpuqueue.model.dependencies import Dependency
from gpuqueue.model.job_ref import job_id
from gpuqueue.model.job_spec import EarlySignal, Priority
from gpuqueue.model.retries import DEFAULT_ON, Retries
from gpuqueue.model.terminal_size import Window
from gpuqueue.text.sanitize import brief
from gpuqueue.text.units import KIB, MAX_BYTES, parse_bytes, parse_duration

if TYPE_CHECKING:
    from typing import TypeVar

    from gpuqueue.model import sweep as sweeping

    Word = TypeVar("Word", bound=Enum)
else:
    sweeping = later("gpuqueue.model.sweep")

#: Largest count that may be requested.
MOST = 10**9
#: The word that removes a value in an edit.
NONE = "none"


class Faults:
    """The faults of one request so far."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []

    def of(self, field: str, read: Callable[..., Any], *values: Any) -> Any:
        """Return what *read* makes of *values* for *field*; None if they are malformed, which :meth:`check` reports."""
        try:
            return read(*values)
        except BadRequest as error:
            self._found += error.faults or [(field, str(error))]
            return None

    def check(self) -> None:
        """Check that there was no fault.

        Raises:
            BadRequest: there was. It has all of them.

        """
        if self._found:
            raise BadRequest.of_faults(self._found)


# ---- numbers, sizes, durations ---------------------------------------------------------------------------------------


def count(what: str, value: object) -> int:
    """Return a whole number from 0 to MOST."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise BadRequest(f"{what} must be a whole number from 0 to {MOST}, not {brief(value)}")
    return value


def seconds_or_none(what: str, value: object) -> float | None:
    """Return a number of seconds, or None."""
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or _is_nan(value):
        raise BadRequest(f"{what} must be a number of seconds, not {brief(value)}")
    return value


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)  # math.isnan raises on an int that is too large for a float


def duration_or_none(what: str, value: object) -> float | None:
    """Return a duration in seconds, given in seconds or as text such as ``2h``, or None."""
    return parse_duration(value) if isinstance(value, str) else seconds_or_none(what, value)


def time_limit(value: object) -> float | None:
    """Return a job's time limit in seconds. The spec checks its range."""
    return duration_or_none("time_limit", value)


def added_time(value: object) -> float:
    """Return the seconds to add to a time limit."""
    added_s = duration_or_none("time", value)
    if not added_s:
        raise BadRequest(f"give the time to add, such as 2h, not {brief(value)}")
    return added_s


def size_or_none(what: str, value: object) -> int | None:
    """Return a size in bytes, given in bytes or as text such as ``20G``, or None."""
    if value is None:
        return None
    if isinstance(value, str):
        return parse_bytes(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_BYTES:
        raise BadRequest(f"{what} must be a size in bytes or such as 20G, not {brief(value)}")
    return value


def mem_bytes(value: str | int) -> int:
    """Return the memory that a job requests, in bytes. The spec checks the type and the largest number.

    Raises:
        BadRequest: it is a text that is no size, or so few bytes that the unit is missing, as in ``mem=6``.

    """
    if isinstance(value, str):
        return parse_bytes(value)
    if type(value) is int and 0 < value < KIB:
        raise BadRequest(f"{value} bytes are too few for any program: write a unit, such as '{value}G'")
    return value


# ---- words -----------------------------------------------------------------------------------------------------------


def text_or_none(what: str, value: object, *, most: int | None = None) -> str | None:
    """Return a text of at most *most* characters, without characters that a database refuses, or None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadRequest(f"{what} must be text, not {brief(value)}")
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise BadRequest(f"{what} cannot be {brief(value)}: that is no text")
    if most is not None and len(value) > most:
        raise BadRequest(f"{what} must have at most {most} characters, not {len(value)}")
    return value


def word(what: str, value: object, kind: type[Word]) -> Word:
    """Return a member of the enum *kind*, given as the member or as its text."""
    for each in kind:
        if value is each or (isinstance(value, str) and value == str(each)):
            return each
    raise BadRequest(f"{what} must be one of {', '.join(map(str, kind))}, not {brief(value)}")


def words_of(what: str, value: object, kind: type[Word]) -> tuple[Word, ...]:
    """Return several members of the enum *kind*, each given as the member or as its text."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise BadRequest(f"{what} must be a list of {kind.__name__}, not {brief(value)}")
    return tuple(word(f"each of {what}", each, kind) for each in value)


def name(value: object) -> str:
    """Return the name of a job: one line of text. The spec checks its length."""
    if not isinstance(value, str):
        raise BadRequest(f"name must be text, not {brief(value)}")
    if not value.strip():
        raise BadRequest("the name is empty: give a name, or none")
    if len(value.splitlines()) > 1 or any(char < " " or "\x7f" <= char <= "\x9f" for char in value):
        raise BadRequest(f"the name must be one line of text without control characters, not {brief(value)}")
    return value


def priority(value: object) -> Priority:
    """Return a priority."""
    return word("priority", value, Priority)


def words(what: str, value: object) -> tuple[str, ...]:
    """Return a list of words. A single text is refused, because as a sequence it would be its letters."""
    if isinstance(value, str):
        raise BadRequest(f"{what} must be a list of words, not the text {brief(value)}: write [{brief(value)}]")
    if isinstance(value, bytes) or not isinstance(value, Sequence):
        raise BadRequest(f"{what} must be a list of words, not {brief(value)}")
    for each in value:
        if not isinstance(each, str):
            raise BadRequest(f"{what} must be a list of words, and {brief(each)} is no text")
    return tuple(value)


def listed(what: str, value: object) -> tuple[str, ...]:
    """Return the words of a text with commas, or of several such texts; None means no words."""
    if value is None:
        return ()
    texts = (value,) if isinstance(value, str) else words(what, value)
    return tuple(each.strip() for text in texts for each in str(text).split(","))


# ---- the values of a request -----------------------------------------------------------------------------------------


def early_signal(value: object) -> EarlySignal | None:
    """Return a job's warning signal, given as an EarlySignal or as text such as ``USR1@120``, or None."""
    if value is None or isinstance(value, EarlySignal):
        return value
    if not isinstance(value, str):
        raise BadRequest(f"signal must be text such as USR1@120, not {brief(value)}")
    return EarlySignal.parse(value)


def environment(value: object) -> Mapping[str, str]:
    """Return the variables of a job, given as a mapping or as ``KEY=VALUE`` texts. The spec checks each variable."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise BadRequest(f"env must be a mapping of names to values, not {brief(value)}")
    found = {}
    for each in value:
        if not isinstance(each, str):
            raise BadRequest(f"env must be a mapping of names to values, or texts such as KEY=VALUE, not {brief(each)}")
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise BadRequest(f"--env {brief(each)}: write it like --env KEY=VALUE")
        found[key] = text
    return found


def path_or_none(what: str, value: object) -> str | None:
    """Return a path as text, or None."""
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or "\0" in path:
        raise BadRequest(f"{what} must be a path, not {brief(value)}")
    return path


def terminal(value: object) -> Window | None:
    """Return the size of the requested terminal. For True this is the size of this process's terminal."""
    if isinstance(value, Window):
        return value
    return Window.ours() if value else None


def dependencies(value: object) -> tuple[Dependency, ...]:
    """Return the dependencies given as ids, as texts such as ``12:any,13``, or as Dependency; one or many."""
    if value is None:
        return ()
    if isinstance(value, (int, str, Dependency)):
        return dependencies([value])
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise BadRequest(f"after must be the ids of jobs, not {brief(value)}")
    found: list[Dependency] = []
    for each in value:
        if isinstance(each, str):
            found += Dependency.parse(each)
        else:
            found.append(each if isinstance(each, Dependency) else Dependency(job_id(each)))
    return tuple(dict.fromkeys(found))


def retries(times: object, on: object, mem_times: object = None) -> Retries:
    """Return the retries of a job: their number and the endings that cause one. No endings without a number.

    *mem_times* is how often it runs again after a lack of device memory, None for the default.
    """
    number = Retries(times=times).times if isinstance(times, int) else count("retries", times)
    most = _mem_times(mem_times)
    if on is None or on == ():
        return Retries(times=number, mem_times=most)
    if not number:
        raise BadRequest("give the number of retries as well: --retries 3")
    wanted = on if isinstance(on, str) else ",".join(listed("retry_on", on)) if on else None
    return Retries(times=number, on=DEFAULT_ON if wanted is None else Retries.parse_on(wanted), mem_times=most)


def _mem_times(value: object) -> int | None:
    return Retries(mem_times=cast("int | None", value)).mem_times  # which checks it


def other_retries(now: Retries, times: object, on: object, mem_times: object) -> Retries:
    """Return the retries *now* with changes. None leaves a value unchanged. No retries means no endings either."""
    most = now.mem_times if mem_times is None else _mem_times(mem_times)
    if times is None and on is None:
        return replace(now, mem_times=most)
    if times is None:
        times = now.times
    return retries(times, now.on if on is None and times else on, most)


def sweeps(value: object) -> tuple[str, ...]:
    """Return the sweeps of a request as texts such as ``lr=1e-3,1e-4``, given as these or as a mapping."""
    if isinstance(value, Mapping):
        value = [f"{name}={sweeping.joined(_values(name, values))}" for name, values in value.items()]
    return words("sweep", value)


def array(value: object, axes: Sequence[str], at_once: object, max_failures: object) -> Array | None:
    """Return the requested array, or None for a single job."""
    most = None if at_once is None else count("at_once", at_once)
    failures = None if max_failures is None else count("max_failures", max_failures)
    if isinstance(value, Array):
        if axes or at_once is not None or max_failures is not None:
            raise BadRequest("an Array contains them: leave out sweep, at_once and max_failures")
        return value
    return Array.asked(text_or_none("array", value), axes, most, failures)


def _values(name: object, value: object) -> tuple[str, ...]:
    """Return the values of a sweep as text."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise BadRequest(f"sweep[{name!r}] must be a list of values, not {brief(value)}")
    return tuple(map(str, value))


def other_at_once(now: Array | None, at_once: object) -> Array | None:
    """Return the array *now* with another concurrency limit. None leaves it unchanged, ``none`` removes it."""
    if at_once is None:
        return now
    if now is None:
        raise BadRequest("at_once limits the members of an array, and this job is no array")
    if at_once == NONE:
        return replace(now, at_once=None)
    text = str(at_once)
    if not text.isascii() or not text.isdigit():
        raise BadRequest(f"--at-once must be a number of members, or none for no limit, not {text!r}")
    return replace(now, at_once=int(text))
