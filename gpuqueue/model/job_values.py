"""What a job reports about its own run: metrics, parameters and a result. Pure.

A series of values is kept in a constant amount of memory: its last, least and largest value with the step and the time
of each, and a curve. If the curve is full, every second point is dropped, and from then on only every second value is
kept. The first, the last, the least and the largest value are always points of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.json_fields import MAX_INTEGER, Fields

#: Accepted names (those of :mod:`gpuqueue.job`), and the most metrics and the most parameters of one run.
NAME = pattern(r"[A-Za-z_][A-Za-z0-9_./@%+:-]{0,63}")
MAX_NAMES = 64
#: Most points of one curve, and of all curves of a run: with more than eight metrics the curves are shorter.
MAX_POINTS, MAX_ALL_POINTS = 500, 4000
#: Points that are kept beside the others: the last, the least and the largest value.
_ALWAYS = 3
#: Largest text of a parameter in characters, of a result in bytes of JSON, and how deep it may be nested.
MAX_TEXT, MAX_RESULT_BYTES, MAX_DEPTH = 200, 16 * 1024, 10
#: Values that are no numbers of JSON, as they are written.
_SPECIAL = {math.inf: "Infinity", -math.inf: "-Infinity"}
NAN = "NaN"

#: A number, or ``NaN``, ``Infinity`` or ``-Infinity``.
Number = float | str
#: A value of a curve: seconds since the start of the run, the step (None: not given), and the value.
Point = tuple[float, int | None, float | str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """A value of a metric: a number, or ``NaN``, ``Infinity`` or ``-Infinity``.

    ``after_s`` is the time since the start of the run, in seconds. ``step`` is None if the job gave none.
    """

    value: float | str
    after_s: float
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """What a run reported of one metric: how many values, the last, and the least and the largest that are not NaN.

    ``curve`` has at most 500 points: seconds since the start of the run, step, and value with six digits. Lists of runs
    omit it.
    """

    name: str
    count: int
    last: Reported
    min: Reported | None = None
    max: Reported | None = None
    curve: tuple[tuple[float, int | None, float | str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobValues:
    """What a job reported about its own run. ``result`` is None if it reported none."""

    metrics: tuple[Metric, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None

    def last(self) -> dict[str, float]:
        """Return the last value of each metric by its name."""
        return {each.name: float(each.last.value) for each in self.metrics}


def number_of(plain: object) -> float | None:
    """Return the number that a plain value is or names, None if it is none."""
    if isinstance(plain, bool) or not isinstance(plain, (int, float, str)):
        return None
    try:
        return float(plain)
    except (ValueError, OverflowError):
        return None


def plain_number(value: float) -> Number:
    """Return *value* as JSON has it."""
    return NAN if value != value else _SPECIAL.get(value, value)  # noqa: PLR0124 - the fastest check


class Series:
    """The values of one metric so far."""

    __slots__ = ("_kept", "_largest", "_last", "_least", "_stride", "count")

    def __init__(self) -> None:
        self.count = 0
        self._stride = 1
        #: Every ``_stride``-th value.
        self._kept: list[Point] = []
        #: These have their number in the series before them.
        self._last: tuple[int, Point] | None = None
        self._least: tuple[int, Point] | None = None
        self._largest: tuple[int, Point] | None = None

    def add(self, value: float, after_s: float, step: int | None, most: int = MAX_POINTS) -> None:
        """Add a value; *most* is the largest number of points of the curve."""
        point = (after_s, step, plain_number(value))
        self._last = here = (self.count, point)
        if value == value:  # noqa: PLR0124 - it is not NaN
            self._least = here if self._least is None or value < float(self._least[1][2]) else self._least
            self._largest = here if self._largest is None or value > float(self._largest[1][2]) else self._largest
        if self.count % self._stride == 0:
            self._kept.append(point)
            self._thin(most)
        self.count += 1

    def _thin(self, most: int) -> None:
        while len(self._kept) > max(1, most - _ALWAYS):
            del self._kept[1::2]
            self._stride *= 2

    def broken(self, name: str) -> str | None:
        """Return the last value in words if it is no number: NaN, or infinite for a loss that was finite before.

        A best loss begins as infinite, and other metrics may be so by design.
        """
        step, value = self._last[1][1:] if self._last is not None else (None, 0.0)
        if not isinstance(value, str):
            return None
        ends = [float(each[1][2]) for each in (self._least, self._largest) if each is not None]
        if value != NAN and not ("loss" in name.lower() and any(map(math.isfinite, ends))):
            return None
        return f"{name} is {value}" + ("" if step is None else f" at step {step}")

    def metric(self, name: str, most: int = MAX_POINTS) -> Metric | None:
        """Return it as the metric *name*, with a curve of at most *most* points; None without a value."""
        if self._last is None:
            return None
        self._thin(most)
        points = {number * self._stride: point for number, point in enumerate(self._kept)}
        points.update(each for each in (self._least, self._largest, self._last) if each is not None)
        return Metric(
            name=name,
            count=self.count,
            last=_reported(self._last[1]),
            min=_reported(self._least[1]) if self._least is not None else None,
            max=_reported(self._largest[1]) if self._largest is not None else None,
            curve=tuple(_short(points[number]) for number in sorted(points)),
        )

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values of JSON."""
        ends = {"last": self._last, "least": self._least, "largest": self._largest}
        return {"count": self.count, "stride": self._stride, "kept": [*self._kept], **ends}

    @classmethod
    def from_plain(cls, plain: object) -> Series:
        """Return what :meth:`to_plain` wrote.

        Raises:
            Unreadable: *plain* is no such series.

        """
        fields, found = Fields(plain, "a metric of a run"), cls()
        found.count, found._stride = fields.whole("count"), fields.whole("stride", least=1)
        found._kept = [_point(each) for each in fields.each("kept")]
        if len(found._kept) > MAX_POINTS:
            raise fields.wrong("kept", f"a list of at most {MAX_POINTS} points")
        ends = [_numbered(fields.each(name)) if fields.has(name) else None for name in ("last", "least", "largest")]
        found._last, found._least, found._largest = ends
        return found


def _reported(point: Point) -> Reported:
    after_s, step, value = point
    return Reported(value=value, after_s=after_s, step=step)


def _short(point: Point) -> Point:
    after_s, step, value = point
    return after_s, step, value if isinstance(value, str) else float(f"{value:.6g}")


def _numbered(plain: list[Any]) -> tuple[int, Point]:
    if len(plain) != 2 or type(plain[0]) is not int:  # noqa: PLR2004 - a number and a point
        raise Unreadable("a metric of a run cannot be read: a value has no number")
    return plain[0], _point(plain[1])


def _point(plain: object) -> Point:
    """Return the point that a plain value is.

    Raises:
        Unreadable: it is none.

    """
    if isinstance(plain, (list, tuple)) and len(plain) == 3:  # noqa: PLR2004 - see Point
        after_s, value = number_of(plain[0]), number_of(plain[2])
        if after_s is not None and value is not None and (plain[1] is None or _is_step(plain[1])):
            return after_s, plain[1], plain_number(value)
    raise Unreadable("a metric of a run cannot be read: a point is invalid")


def _is_step(plain: object) -> bool:
    return type(plain) is int and 0 <= plain <= MAX_INTEGER


class Collected:
    """What a job has reported so far, in a constant amount of memory. What is invalid is left out: the job wrote it."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}
        self._params: dict[str, str] = {}
        self._result: dict[str, Any] | None = None

    @property
    def _most(self) -> int:
        return min(MAX_POINTS, MAX_ALL_POINTS // max(1, len(self._series)))

    def add_line(self, line: bytes, since_s: float, now_s: float) -> None:
        """Add a line of JSON that :mod:`gpuqueue.job` wrote.

        *since_s* and *now_s* are the start of the run and the current time on the host's monotonic clock.
        """
        try:
            plain = json.loads(line, parse_constant=str)
        except (ValueError, RecursionError):
            return
        if not isinstance(plain, dict):
            return
        at_s, step = number_of(plain.get("at_s")), plain.get("step")
        after_s = (at_s if at_s is not None and since_s <= at_s <= now_s else now_s) - since_s
        self.add_metrics(_dict(plain.get("metric")).items(), after_s, step if _is_step(step) else None)
        for name, value in _dict(plain.get("param")).items():
            if isinstance(value, str) and _has_room(self._params, name):
                self._params[name] = value[:MAX_TEXT]
        result = plain.get("result")
        if isinstance(result, dict) and _is_kept(result):
            self._result = result

    def add_metrics(self, values: Iterable[tuple[str, object]], after_s: float, step: int | None) -> None:
        """Add one value for each name, *after_s* seconds after the start of the run."""
        for name, plain in values:
            value = number_of(plain)
            if value is not None and _has_room(self._series, name):
                series = self._series.setdefault(name, Series())
                series.add(value, round(max(0.0, after_s), 3), step, self._most)

    def broken(self) -> str | None:
        """Return the first metric whose last value is no number, in words: ``loss is NaN``; None if there is none."""
        return next((words for name, series in self._series.items() if (words := series.broken(name))), None)

    def values(self) -> JobValues:
        """Return all that is known, in the order in which the names came."""
        most = self._most
        metrics = (series.metric(name, most) for name, series in self._series.items())
        return JobValues(
            metrics=tuple(each for each in metrics if each is not None), params=dict(self._params), result=self._result
        )

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values of JSON."""
        metrics = {name: series.to_plain() for name, series in list(self._series.items())}
        return {"metrics": metrics, "params": dict(self._params), "result": self._result}

    @classmethod
    def from_plain(cls, fields: Fields) -> Collected:
        """Return what :meth:`to_plain` wrote.

        Raises:
            Unreadable: *fields* are not valid.

        """
        found = cls()
        metrics = fields.below("metrics", "the metrics of a run")
        found._series = {name: Series.from_plain(metrics.plain(name)) for name in metrics}
        found._params = fields.below("params", "the parameters of a run").all_texts()
        result = fields.plain("result")
        found._result = result if isinstance(result, dict) else None
        return found


def _dict(plain: object) -> Mapping[str, Any]:
    return plain if isinstance(plain, dict) else {}


def _has_room(known: Mapping[str, object], name: str) -> bool:
    return name in known or (len(known) < MAX_NAMES and NAME.fullmatch(name) is not None)


def _is_kept(result: dict[str, Any]) -> bool:
    """Return whether *result* is valid JSON, and neither too large nor too deep."""
    try:
        return _depth(result) <= MAX_DEPTH and len(json.dumps(result, allow_nan=False)) <= MAX_RESULT_BYTES
    except (ValueError, RecursionError):  # 1e999 is read as infinity
        return False


def _depth(plain: object) -> int:
    below = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else None
    return 0 if below is None else 1 + max(map(_depth, below), default=0)


# ---- lines of a log --------------------------------------------------------------------------------------------------

#: A line ``metric: val_acc=0.91 step=3``, or the dict with ``epoch`` that the Trainer of Hugging Face prints. Before it
#: may be the name of a process by torchrun. A value may be printed as torch's ``tensor(0.91, grad_fn=…)``. Nothing in
#: it is repeated twice in a row: the time is linear in the text.
_LINE = re.compile(
    rb"(?:^|[\r\n])(?:\[[A-Za-z]+[0-9]+\]:)?[ \t]*"
    rb"(?:metric:[ \t]([^\r\n]{1,4096})|(\{'[^\r\n]{1,4096}))(?=[\r\n]|$)"
)
_PAIR = re.compile(r"(?:^|\s)([^\s=]{1,64})=(?:tensor\()?([^\s,;)]{1,40})")
_ITEM = re.compile(r"'([^']{1,64})': '?(?:tensor\()?([^\s,')}]{1,40})'?")


def metrics_in(text: bytes) -> Iterable[tuple[dict[str, str], int | None]]:
    """Yield the values by name, and the step, of each line of a log that reports metrics."""
    for found in _LINE.finditer(text):
        pairs, items = found[1], found[2]
        if pairs is not None:
            values = dict(_PAIR.findall(pairs.decode("utf-8", "replace")))
            step = values.pop("step", "")
            yield values, int(step) if step.isascii() and step.isdigit() and len(step) < 16 else None  # noqa: PLR2004
        elif items.rstrip().endswith(b"}"):
            values = dict(_ITEM.findall(items.decode("utf-8", "replace")))
            if "epoch" in values:
                yield values, None
