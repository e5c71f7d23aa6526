"""What a job reports about its own run: metrics, parameters and a result. Pure.

A series of values is kept in a constant amount of memory: its last, least and largest value with the step and the time
of each, and a curve. If the curve is full, every second point is dropped, and from then on only every second value is
kept. The first, the last, the least and the largest value are always points of it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.json_fields import MAX_INTEGER

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


@dataclasses.dataclass(slots=True)
class Series:
    """The values of one metric so far."""

    count: int = 0
    stride: int = 1
    #: Every ``stride``-th value.
    kept: list[Point] = field(default_factory=list)
    #: These have their number in the series before them.
    last: tuple[int, Point] | None = None
    least: tuple[int, Point] | None = None
    largest: tuple[int, Point] | None = None
    #: Whether the code of the job reports it. What the log says of it counts no more: only a value of the code has a
    #: time of its own, and which of both is the newer one is not known.
    from_code: bool = False

    def __post_init__(self) -> None:
        points = [*self.kept, *(each[1] for each in (self.last, self.least, self.largest) if each is not None)]
        if not self.stride or len(self.kept) > MAX_POINTS or any(number_of(value) is None for _, _, value in points):
            raise ValueError(f"a series has at most {MAX_POINTS} points, which are numbers")

    def add(self, value: float, after_s: float, step: int | None, most: int = MAX_POINTS) -> None:
        """Add a value; *most* is the largest number of points of the curve."""
        point = (after_s, step, plain_number(value))
        self.last = here = (self.count, point)
        if value == value:  # noqa: PLR0124 - it is not NaN
            self.least = here if self.least is None or value < float(self.least[1][2]) else self.least
            self.largest = here if self.largest is None or value > float(self.largest[1][2]) else self.largest
        if self.count % self.stride == 0:
            self.kept.append(point)
            self._thin(most)
        self.count += 1

    def _thin(self, most: int) -> None:
        while len(self.kept) > max(1, most - _ALWAYS):
            del self.kept[1::2]
            self.stride *= 2

    def broken(self, name: str) -> str | None:
        """Return the last value in words if it is no number: NaN, or infinite for a loss that was finite before.

        A best loss begins as infinite, and other metrics may be so by design.
        """
        step, value = self.last[1][1:] if self.last is not None else (None, 0.0)
        if not isinstance(value, str):
            return None
        ends = [float(each[1][2]) for each in (self.least, self.largest) if each is not None]
        if value != NAN and not ("loss" in name.lower() and any(map(math.isfinite, ends))):
            return None
        return f"{name} is {value}" + ("" if step is None else f" at step {step}")

    def metric(self, name: str, most: int = MAX_POINTS) -> Metric | None:
        """Return it as the metric *name*, with a curve of at most *most* points; None without a value."""
        if self.last is None:
            return None
        self._thin(most)
        points = {number * self.stride: point for number, point in enumerate(self.kept)}
        points.update(each for each in (self.least, self.largest, self.last) if each is not None)
        return Metric(
            name=name,
            count=self.count,
            last=_reported(self.last[1]),
            min=_reported(self.least[1]) if self.least is not None else None,
            max=_reported(self.largest[1]) if self.largest is not None else None,
            curve=tuple(_short(points[number]) for number in sorted(points)),
        )


def _reported(point: Point) -> Reported:
    after_s, step, value = point
    return Reported(value=value, after_s=after_s, step=step)


def _short(point: Point) -> Point:
    after_s, step, value = point
    return after_s, step, value if isinstance(value, str) else float(f"{value:.6g}")


def _is_step(plain: object) -> bool:
    return type(plain) is int and 0 <= plain <= MAX_INTEGER


@dataclasses.dataclass(slots=True)
class Collected:
    """What a job has reported so far, in a constant amount of memory. What is invalid is left out: the job wrote it."""

    metrics: dict[str, Series] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    result: dict[str, Any] | None = None

    @property
    def _most(self) -> int:
        return min(MAX_POINTS, MAX_ALL_POINTS // max(1, len(self.metrics)))

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
        values = _dict(plain.get("metric")).items()
        self.add_metrics(values, after_s, step if _is_step(step) else None, from_code=True)
        for name, value in _dict(plain.get("param")).items():
            if isinstance(value, str) and _has_room(self.params, name):
                self.params[name] = value[:MAX_TEXT]
        result = plain.get("result")
        if isinstance(result, dict) and _is_kept(result):
            self.result = result

    def add_metrics(
        self, values: Iterable[tuple[str, object]], after_s: float, step: int | None, *, from_code: bool = False
    ) -> None:
        """Add one value for each name, *after_s* seconds after the start of the run; of the code or of the log."""
        for name, plain in values:
            value = number_of(plain)
            if value is not None and _has_room(self.metrics, name):
                series = self.metrics.setdefault(name, Series())
                if series.from_code and not from_code:
                    continue
                series.from_code = from_code
                series.add(value, round(max(0.0, after_s), 3), step, self._most)

    def broken(self) -> str | None:
        """Return the first metric whose last value is no number, in words: ``loss is NaN``; None if there is none."""
        return next((words for name, series in self.metrics.items() if (words := series.broken(name))), None)

    def values(self) -> JobValues:
        """Return all that is known, in the order in which the names came."""
        most = self._most
        metrics = (series.metric(name, most) for name, series in self.metrics.items())
        return JobValues(
            metrics=tuple(each for each in metrics if each is not None), params=dict(self.params), result=self.result
        )


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
_LINE = pattern(
    rb"(?:^|[\r\n])(?:\[[A-Za-z]+[0-9]+\]:)?[ \t]*"
    rb"(?:metric:[ \t]([^\r\n]{1,4096})|(\{'[^\r\n]{1,4096}))(?=[\r\n]|$)"
)
#: The values behind the rate of a bar: ``[00:12<00:15, 3.6it/s, loss=0.31]`` of tqdm, which PyTorch Lightning uses too,
#: and ``• 0:00:15 3.6it/s loss: 0.31`` of Lightning's other bar.
_BAR = pattern(
    rb"<[0-9:?]{1,12},[ ]{1,3}[0-9.?]{1,12}[A-Za-z]{0,3}[A-Za-z/]{2,16}, ([^\]<\r\n]{1,1024})\]"
    rb"|\xe2\x80\xa2 [0-9:-]{4,12} [0-9.]{1,12}it/s ([^\r\n]{1,1024})"
)
#: What Lightning shows beside them: the number of the directory of its logs.
_NO_METRIC = "v_num"
_COLON = pattern(r"([^\s=:]{1,64}): (?=[-+.\w])")
_PAIR = pattern(r"(?:^|\s)([^\s=]{1,64})=(?:tensor\()?([^\s,;)]{1,40})")
_ITEM = pattern(r"'([^']{1,64})': '?(?:tensor\()?([^\s,')}]{1,40})'?")


def metrics_in(text: bytes) -> Iterator[tuple[dict[str, str], int | None]]:
    """Yield the values by name, and the step, of each line and bar of a log that reports metrics, in their order."""
    found = [*((each, _of_line) for each in _LINE.finditer(text)), *((each, _of_bar) for each in _BAR.finditer(text))]
    for each, read in sorted(found, key=lambda pair: pair[0].end()):
        yield from read(each)


def _of_line(line: re.Match[bytes]) -> Iterator[tuple[dict[str, str], int | None]]:
    pairs, items = line[1], line[2]
    if pairs is not None:
        values = dict(_PAIR.findall(pairs.decode("utf-8", "replace")))
        step = values.pop("step", "")
        yield values, int(step) if step.isascii() and step.isdigit() and len(step) < 16 else None  # noqa: PLR2004
    elif items.rstrip().endswith(b"}"):
        values = dict(_ITEM.findall(items.decode("utf-8", "replace")))
        if "epoch" in values:
            yield values, None


def _of_bar(bar: re.Match[bytes]) -> Iterator[tuple[dict[str, str], int | None]]:
    values = dict(_PAIR.findall(_COLON.sub(r"\1=", (bar[1] or bar[2]).decode("utf-8", "replace"))))
    values.pop(_NO_METRIC, None)
    if values:
        yield values, None
