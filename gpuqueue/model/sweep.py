"""The parameters of a sweep and their values. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

_NAME = pattern(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SPAN = pattern(r"(-?[0-9]{1,15})\.\.(-?[0-9]{1,15})")
#: An attempt at a range that is not a valid one, such as ``0.1..0.5``. Detected for a helpful error message.
_NUMBERS = pattern(r"[-+]?[0-9.]*[0-9](?:e[-+]?[0-9]+)?\.\.+[-+]?[0-9.]*[0-9](?:e[-+]?[0-9]+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter of a sweep: its name, and its values as the user wrote them (``1e-3,1e-4`` or ``0..4``)."""

    name: str
    text: str

    AS_TEXT = "A parameter of a sweep and its values, such as lr=1e-3,1e-4 or seed=0..4."

    def __post_init__(self) -> None:
        """Validate the name and the values.

        Raises:
            BadRequest: the name is invalid, a range is invalid, or a value is empty.

        """
        if not _NAME.fullmatch(self.name) or self.name.lower() == "index":
            raise BadRequest(f"{brief(self.name)} cannot name a sweep: use letters, digits and _, but not index alone")
        for piece in self.text.split(","):
            span = _SPAN.fullmatch(piece)
            if span is None and _NUMBERS.fullmatch(piece):
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
    def parse(cls, text: str) -> Axis:
        """Return the axis that *text* (``name=values``) describes.

        Raises:
            BadRequest: *text* is malformed.

        """
        name, equals, values = text.partition("=")
        if not equals:
            raise BadRequest(f"{brief(text)} is no sweep: write it like lr=1e-3,1e-4 or seed=0..4")
        return cls(name.strip(), values.strip())

    def __str__(self) -> str:
        return f"{self.name}={self.text}"

    @property
    def variable(self) -> str:
        """Return the name of the environment variable that has the value."""
        return f"GPUQUEUE_SWEEP_{self.name.upper()}"

    def __len__(self) -> int:
        return sum(map(len, self._pieces()))

    def value(self, place: int) -> str:
        """Return the value at *place*, counted from 0.

        Raises:
            IndexError: *place* is not below the number of values.

        """
        for piece in self._pieces():
            if place < len(piece):
                return str(piece[place])
            place -= len(piece)
        raise IndexError(place)

    def _pieces(self) -> Iterator[range | tuple[str]]:
        for piece in self.text.split(","):
            span = _SPAN.fullmatch(piece)
            yield range(int(span[1]), int(span[2]) + 1) if span else (piece,)
