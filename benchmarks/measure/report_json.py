"""Reads a report from an untrusted file: each field is checked, and an error names the wrong field.

Every number must be finite: a NaN compares false with every bound, and would meet every aim.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from benchmarks.measure.figure import Absent, Figure, Floor, Report, Run

T = TypeVar("T")
#: Parts between dots. Those of a claim have the size of the queue, those of a peer its name.
_NAME = re.compile(r"[^\s.|]+(\.[^\s.|]+)*")
_OF_CLAIM = re.compile(r"claim(-libc)?\.[0-9]{1,12}(\.[^.]+)+")
_OF_PEER = re.compile(r"peers\.[^.]+\.[^.]+")


def read(text: str) -> Report:
    """Return the report that ``Report.to_json`` wrote.

    Raises:
        ValueError: the text is no such report; the message says what is wrong.
    """
    try:
        return _report(Fields(json.loads(text, parse_constant=_no_number), ""))
    except RecursionError as error:
        raise ValueError("no report of python -m benchmarks --json: it is too deep") from error
    except ValueError as error:
        raise ValueError(f"no report of python -m benchmarks --json: {error}") from error


class Fields:
    """The fields of one JSON object, read by type."""

    def __init__(self, plain: object, where: str) -> None:
        if not isinstance(plain, dict):
            raise ValueError(f"{where or 'it'} is no object")  # noqa: TRY004 - of the file, and not of a call
        self._plain: dict[str, Any] = plain
        self._where = f"{where}." if where else ""

    def text(self, name: str) -> str:
        """Return a text."""
        return str(self._one(name, "text", lambda each: isinstance(each, str)))

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        return bool(self._one(name, "true or false", lambda each: isinstance(each, bool)))

    def number(self, name: str) -> float:
        """Return a number."""
        return float(self._one(name, "number", is_number))

    def whole(self, name: str) -> int:
        """Return a count."""
        return int(self._one(name, "count", lambda each: is_number(each) and each == int(each) and each >= 0))

    def has(self, name: str) -> bool:
        """Return whether the field exists and has a value."""
        return self._plain.get(name) is not None

    def inner(self, name: str) -> Fields:
        """Return an object."""
        return Fields(self._plain.get(name), f"{self._where}{name}")

    def each(self, name: str, read_one: Callable[[Fields], T]) -> tuple[T, ...]:
        """Return a list of objects, each converted by *read_one*."""
        found = self._one(name, "list", lambda each: isinstance(each, list))
        return tuple(read_one(Fields(one, f"{self._where}{name}[{place}]")) for place, one in enumerate(found))

    def loads(self, name: str) -> list[float]:
        """Return a non-empty list of load averages."""
        return list(
            self._one(
                name, "list of numbers", lambda each: isinstance(each, list) and each and all(map(is_number, each))
            )
        )

    def wrong(self, name: str, what: str) -> ValueError:
        """Return the error for a field that is no *what*."""
        return ValueError(f"{self._where}{name} is no {what}")

    def _one(self, name: str, what: str, fits: Callable[[Any], object]) -> Any:
        found = self._plain.get(name)
        if not fits(found):
            raise self.wrong(name, what)
        return found


def is_number(each: object) -> bool:
    """Return whether *each* is a finite number that a float can hold."""
    try:
        return isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each)
    except OverflowError:
        return False


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _report(fields: Fields) -> Report:
    return Report(
        at=_when(fields),
        quick=fields.flag("quick"),
        took_s=fields.number("took_s"),
        machine=_machine(fields.inner("machine")),
        figures=fields.each("figures", _figure),
        absent=fields.each("absent", lambda each: Absent(name=each.text("name"), why=each.text("why"))),
        runs=fields.each("runs", _run) if fields.has("runs") else (),
    )


def _when(fields: Fields) -> datetime:
    try:
        return datetime.fromisoformat(fields.text("at"))
    except ValueError as error:
        raise fields.wrong("at", "date and time") from error


def _machine(fields: Fields) -> dict[str, Any]:
    return {
        "cores": fields.whole("cores"),
        "memory_bytes": fields.whole("memory_bytes"),
        **{name: fields.text(name) for name in ("kernel", "python", "store")},
        "load_before": fields.loads("load_before"),
    }


def _run(fields: Fields) -> Run:
    return Run(
        at=_when(fields),
        quick=fields.flag("quick"),
        took_s=fields.number("took_s"),
        machine=_machine(fields.inner("machine")),
        least=fields.number("least"),
        most=fields.number("most"),
    )


def _figure(fields: Fields) -> Figure:
    name = fields.text("name")
    of_kind = {"claim": _OF_CLAIM, "claim-libc": _OF_CLAIM, "peers": _OF_PEER}.get(name.partition(".")[0], _NAME)
    if not (_NAME.fullmatch(name) and of_kind.fullmatch(name)):
        raise fields.wrong("name", f"name of a figure: {name!r}")
    floor = fields.inner("floor") if fields.has("floor") else None
    return Figure(
        name=name,
        value=fields.number("value"),
        unit=fields.text("unit"),
        floor=Floor(name=floor.text("name"), value=floor.number("value")) if floor else None,
        rounds=fields.whole("rounds"),
        of=fields.whole("of"),
        load=fields.number("load"),
    )
