"""Reads JSON payloads of other processes and versions, with a type check for each field. Pure.

The values end up in arithmetic, SQL and terminals, so every field is read by name *and* type. A missing field or a
wrong type raises one documented error that names the field. Unknown keys are ignored, so that an older reader accepts
the payload of a newer writer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from gpuqueue.errors import Unreadable

#: The largest integer that every supported store and database accepts.
MAX_INTEGER = 2**63 - 1
_TEXT = frozenset({str})
#: Longest quote of an invalid value in a message, in characters.
_SHOWN = 40


class Fields:
    """The fields of one object in a payload. *what* is its name in messages, such as ``a run's device``.

    The methods that return a typed field raise :class:`~gpuqueue.errors.Unreadable` if its value has another type.
    """

    __slots__ = ("_plain", "_what")

    def __init__(self, plain: object, what: str) -> None:
        """Wrap *plain*.

        Raises:
            Unreadable: *plain* is no object with named fields.

        """
        if type(plain) is not dict and not isinstance(plain, Mapping):  # the second check takes five times as long
            raise Unreadable(f"{what} cannot be read: it is no object but {shown(plain)}")
        self._plain: Mapping[str, Any] = plain
        self._what = what

    def __contains__(self, name: str) -> bool:
        return name in self._plain

    def __iter__(self) -> Iterator[str]:
        return iter(self._plain)

    def wrong(self, name: str, wanted: str) -> Unreadable:
        """Return the error that the field *name* is missing or is not *wanted*."""
        if name not in self._plain:
            return Unreadable(f"{self._what} cannot be read: {name!r} is missing")
        return Unreadable(f"{self._what} cannot be read: {name!r} is {shown(self._plain[name])}, not {wanted}")

    def has(self, name: str) -> bool:
        """Return whether the field exists and is not null. Writers use both for unknown values."""
        return self._plain.get(name) is not None

    def plain(self, name: str, default: object = None) -> object:
        """Return a field unchecked, or *default* if it is missing."""
        return self._plain.get(name, default)

    def whole_object(self) -> Mapping[str, Any]:
        """Return all fields unchecked, in their order."""
        return self._plain

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text field, or *default* if it is missing and there is a default."""
        value = self._plain.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value

    def text_or_none(self, name: str) -> str | None:
        """Return a text field, or None if it is missing or null."""
        return None if self._plain.get(name) is None else self.text(name)

    def whole(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Return a field that is a whole number from *least* to MAX_INTEGER."""
        value = self._plain.get(name, default)
        if type(value) is not int or not least <= value <= MAX_INTEGER:
            raise self.wrong(name, f"a whole number from {least} up")
        return value

    def whole_or_none(self, name: str) -> int | None:
        """Return a field that is a whole number from 0 to MAX_INTEGER, or None if it is missing or null."""
        return None if self._plain.get(name) is None else self.whole(name)

    def number(self, name: str, default: float | None = None) -> float:
        """Return a field that is a finite number."""
        value = self._plain.get(name, default)
        if type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER:
            return value
        if type(value) is float and math.isfinite(value):
            return value
        raise self.wrong(name, "a number")

    def number_or_none(self, name: str) -> float | None:
        """Return a field that is a finite number, or None if it is missing or null."""
        return None if self._plain.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool | None = None) -> bool:  # noqa: FBT001 - same signature as the other methods
        """Return a field that is true or false."""
        value = self._plain.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def flag_or_none(self, name: str) -> bool | None:
        """Return a field that is true or false, or None if it is missing or null."""
        return None if self._plain.get(name) is None else self.flag(name)

    def each(self, name: str) -> list[Any]:
        """Return a field that is a list of any values, or an empty list if it is missing."""
        value = self._plain.get(name, ())
        if not isinstance(value, (list, tuple)):
            raise self.wrong(name, "a list")
        return list(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a field that is a list of texts."""
        value = self._plain.get(name)
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
            raise self.wrong(name, "a list of texts")
        return tuple(value)

    def all_texts(self) -> dict[str, str]:
        """Return all fields, each of which must be text."""
        if not _TEXT.issuperset(map(type, self._plain.values())):  # fast path for environments
            for name in self._plain:
                self.text(name)
        return dict(self._plain)

    def below(self, name: str, what: str) -> Fields:
        """Return the fields of the nested object in the field *name*. *what* is its name in messages."""
        if name not in self._plain:
            raise self.wrong(name, "an object")
        return Fields(self._plain[name], what)


def loaded(text: object, what: str) -> Fields:
    """Return the fields of the JSON object in *text*.

    Raises:
        Unreadable: *text* is missing, is no JSON, or is no object.

    """
    if not isinstance(text, (str, bytes)):
        raise Unreadable(f"{what} cannot be read: it is missing")
    try:
        return Fields(json.loads(text), what)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{what} cannot be read: it is no JSON ({str(error)[:_SHOWN]})") from error


def shown(value: object) -> str:
    """Return a short text for *value*, since a payload may hold megabytes, or numbers too long to print."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    if type(value) is int and abs(value) > MAX_INTEGER:
        return "a number beyond all bounds"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
