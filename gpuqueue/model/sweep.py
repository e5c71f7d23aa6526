"""The parameters of a sweep and their values. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

_NAME = pattern(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SPAN = pattern(r"(-?[0-9]{1,15})\.\.(-?[0-9]{1,15})")
#: An attempt at a range that is not a valid one, such as ``0.1..0.5`` or ``0..20:5``, detected for a helpful message.
_NUMBERS = pattern(
    r"[-+]?[0-9.]*[0-9](?:e[-+]?[0-9]+)?\.\.+[-+]?[0-9.]*[0-9](?:e[-+]?[0-9]+)?(?::[-+]?[0-9.]*[0-9])?", re.IGNORECASE
)
#: What decides where a value ends: a text in quotes, a bracket, a comma, a quote that is not closed. A quote after a
#: letter or digit is an apostrophe.
_MARK = pattern(r"""(?<!\w)"(?:[^"\\]|\\.)*"|(?<!\w)'(?:[^'\\]|\\.)*'|[\[\](){},]|(?<!\w)["']""", re.DOTALL)
#: Each bracket and the one that closes it.
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
#: How a text begins that lists any values, such as the lines of a file, as JSON.
_AS_JSON = "@["
#: How an axis is written that an earlier version would read in another way. It takes no name that begins so.
_NEW = "@"
#: How an axis is written that is linked to the one before it.
_LINKED = "@+"


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter of a sweep: its name, and its values as the user wrote them (``1e-3,1e-4`` or ``0..4``).

    Values that cannot be written like that, such as the lines of a file, are JSON after an @: ``@["a,b", "c"]``.
    In an array of an earlier version ``all_commas`` separate values, also those in brackets and quotes. A ``linked``
    axis has the value at the place of the axis before it, in place of combinations with that one.
    """

    name: str
    text: str
    all_commas: bool = False
    linked: bool = False

    AS_TEXT = (
        "A parameter of a sweep and its values, such as lr=1e-3,1e-4 or seed=0..4. After an @ in front of the name, "
        "commas inside brackets and quotes separate nothing, and @[ begins a JSON list of the values. After @+, the "
        "parameter changes together with the one before it."
    )

    def __post_init__(self) -> None:
        """Validate the name and the values.

        Raises:
            BadRequest: the name is invalid, a range is invalid, a value is empty, or a bracket or quote is not closed.

        """
        if not _NAME.fullmatch(self.name) or self.name.lower() == "index":
            raise BadRequest(f"{brief(self.name)} cannot name a sweep: use letters, digits and _, but not index alone")
        try:
            listed, pieces = _parts(self.text, all_commas=self.all_commas)
        except BadRequest as error:
            raise BadRequest(
                f"{self.name}={brief(self.text)}: {error}: write brackets and quotes in pairs, or put the values into "
                f"a file, one a line (--sweep {self.name}=@FILE)"
            ) from None
        for piece in pieces:
            span = None if listed else _SPAN.fullmatch(piece)
            if not listed and span is None and _NUMBERS.fullmatch(piece):
                raise BadRequest(
                    f"{self.name}={brief(piece)}: a range goes from one whole number to another, such as 0..4; name "
                    "other values one by one, such as 0.1,0.2,0.3"
                )
            if not piece or "\0" in piece or (span and int(span[2]) < int(span[1])):
                what = "an empty value" if self.text.replace(",", "") and not piece else "no values"
                raise BadRequest(
                    f"{self.name}={brief(self.text)} has {what}: write them like lr=1e-3,1e-4 or seed=0..4"
                )

    @classmethod
    def typed(cls, text: str) -> Axis:
        """Return the axis that a user's *text* (``name=values``) describes.

        Raises:
            BadRequest: *text* is malformed.

        """
        name, equals, values = text.partition("=")
        if not equals:
            raise BadRequest(f"{brief(text)} is no sweep: write it like lr=1e-3,1e-4 or seed=0..4")
        return cls(name.strip(), values.strip())

    @classmethod
    def parse(cls, text: str) -> Axis:
        """Return the axis that ``str`` has written, in this version or in an earlier one.

        Raises:
            BadRequest: *text* is malformed.

        """
        linked = text.startswith(_LINKED)
        name, _, values = text.removeprefix(_LINKED if linked else _NEW).partition("=")
        all_commas = not text.startswith(_NEW) and _is_new(values.strip())
        return cls(name.strip(), values.strip(), all_commas=all_commas, linked=linked)

    def __str__(self) -> str:
        mark = _LINKED if self.linked else _NEW if not self.all_commas and _is_new(self.text) else ""
        return f"{mark}{self.name}={self.text}"

    @property
    def variable(self) -> str:
        """Return the name of the environment variable that has the value."""
        return f"GPUQUEUE_SWEEP_{self.name.upper()}"

    def __len__(self) -> int:
        return sum(map(len, _pieces(self.text, self.all_commas)))

    def value(self, place: int) -> str:
        """Return the value at *place*, counted from 0.

        Raises:
            IndexError: *place* is not below the number of values.

        """
        for piece in _pieces(self.text, self.all_commas):
            if place < len(piece):
                return str(piece[place])
            place -= len(piece)
        raise IndexError(place)


def listing(values: Iterable[str]) -> str:
    """Return the text of an axis with exactly these *values*, whatever characters they have."""
    return f"@{json.dumps([*values], ensure_ascii=False)}"


def exactly(values: Iterable[str]) -> str:
    """Return the text of an axis with these *values*, as :func:`joined` does if none is a range or has space around."""
    texts = [*values]
    return listing(texts) if any(".." in each or each != each.strip() for each in texts) else joined(texts)


def split(text: str) -> list[str]:
    """Return the parts of *text* between its commas. A comma inside brackets or quotes separates nothing.

    Raises:
        BadRequest: a bracket or a quote is not closed.

    """
    parts: list[str] = []
    opened: list[str] = []
    start = 0
    for found in _MARK.finditer(text):
        mark = found[0]
        if mark == ",":
            if not opened:
                parts.append(text[start : found.start()])
                start = found.end()
        elif mark in _BRACKETS:
            opened.append(mark)
        elif mark in {'"', "'"}:
            raise BadRequest(f"its {mark} is not closed")
        elif len(mark) == 1 and (not opened or _BRACKETS[opened.pop()] != mark):
            raise BadRequest(f"its {mark} closes no bracket")
    if opened:
        raise BadRequest(f"its {opened[-1]} is not closed")
    return [*parts, text[start:]]


def _parts(text: str, *, all_commas: bool) -> tuple[bool, Sequence[str]]:
    """Return whether the text of an axis lists its values as JSON; and these, or its parts between commas."""
    listed = () if all_commas else _listed(text)
    return bool(listed), listed or (text.split(",") if all_commas else split(text))


def _is_new(text: str) -> bool:
    """Return whether an earlier version, for which all commas separate values, reads *text* in another way."""
    try:
        return _parts(text, all_commas=False)[1] != text.split(",")
    except BadRequest:
        return True


def joined(values: Iterable[str]) -> str:
    """Return the text of an axis with these *values*: as a person would write it, where that can be read back."""
    texts = [*values]
    text = ",".join(texts)
    try:
        is_plain = split(text) in (texts, [""]) and not text.startswith(_AS_JSON)
    except BadRequest:
        is_plain = False
    return text if is_plain else listing(texts)


def _listed(text: str) -> tuple[str, ...]:
    """Return the values of a text of :func:`listing`, or none if *text* is no such text."""
    if not text.startswith(_AS_JSON):
        return ()
    try:
        values = json.loads(text[1:])
    except (ValueError, RecursionError):
        return ()
    return tuple(values) if all(isinstance(value, str) for value in values) else ()


@lru_cache(maxsize=16)
def _pieces(text: str, all_commas: bool) -> tuple[range | tuple[str, ...], ...]:  # noqa: FBT001 - for the cache
    """Return the values of an axis. They are cached, because members are often read one after the other."""
    listed, parts = _parts(text, all_commas=all_commas)
    if listed:
        return (tuple(parts),)
    spans = [(part, _SPAN.fullmatch(part)) for part in parts]
    return tuple(range(int(span[1]), int(span[2]) + 1) if span else (part,) for part, span in spans)
