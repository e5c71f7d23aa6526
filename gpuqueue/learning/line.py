"""Fits the peaks of earlier runs to a line of one numeric argument, such as a batch size. Pure.

The line has the least squares of its relative errors over the mean peak of each value. It counts if at least three
values have runs, of which the largest is at least 1.5 times the smallest, if it rises from zero bytes or more, and if
its median error is below 5 %. Between values that are closer, any peaks are as close to a line. Each run is then moved
along the line to the value of the job, and the usual rule takes the largest of them with the usual margin: a run above
the line stays above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.learning.past_run import PastRun, Proof

#: The least number of values of the argument, the least ratio of the largest to the smallest, and the median of the
#: relative errors from which on it is no line.
LEAST_VALUES, LEAST_SPAN, MAX_ERROR = 3, 1.5, 0.05
#: No argument from here on counts as a number, and no run is moved beyond these bytes: more than any device has. No
#: argument below ``MIN_NUMBER`` but 0 counts either, because its square would be taken for 0.
MAX_NUMBER, MIN_NUMBER, MAX_BYTES = 1e12, 1e-30, 2**50
#: The largest multiple of the largest value with runs up to which a line needs no remark.
FAR = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A peak of ``base_bytes`` and ``step_bytes`` for each unit of ``argument``.

    ``value`` is that of the job. ``low`` and ``high`` are the smallest and the largest value with runs, ``values`` the
    number of different ones. ``error`` is the median of the relative errors.
    """

    argument: str
    base_bytes: int
    step_bytes: float
    value: float
    low: float
    high: float
    values: int
    error: float

    DERIVED = ("predicted_bytes", "is_far")

    @property
    def predicted_bytes(self) -> int:
        """The peak of the job by the line, without a margin."""
        return round(self.at(self.value))

    @property
    def is_far(self) -> bool:
        """Whether the value of the job is more than twice the largest with runs."""
        return self.value > FAR * self.high

    def at(self, value: float) -> float:
        """Return the peak at *value*."""
        return self.base_bytes + self.step_bytes * value


def line_of(
    numbers: Mapping[str, float], alike: Callable[[str], Iterable[tuple[PastRun, float]]]
) -> tuple[Line, Sequence[PastRun]] | None:
    """Return the best line for a job, and the runs that count for it, moved to its value. None without a line.

    Args:
        numbers: The job's numeric arguments by name.
        alike: Returns the runs that differ from the job at most in the argument of this name, newest first, each with
            its number.

    """
    lines: list[tuple[Line, Sequence[tuple[PastRun, float]]]] = []
    for name, value in sorted(numbers.items()):
        runs = list(alike(name))
        line = _fitted(name, value, runs)
        if line is not None:
            lines.append((line, runs))
    if not lines:
        return None
    best, alike_runs = min(lines, key=lambda pair: (-pair[0].values, pair[0].error))
    return best, [moved for run, value in alike_runs if (moved := _moved(best, run, value)) is not None]


def number_of(text: str) -> float | None:
    """Return the number from 0 up that *text* is, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == 0 or MIN_NUMBER <= number < MAX_NUMBER else None  # not a number is neither


def _fitted(name: str, value: float, runs: Iterable[tuple[PastRun, float]]) -> Line | None:
    peaks: dict[float, list[int]] = {}
    for run, number in runs:
        if run.proof is Proof.PEAK and run.bytes:
            peaks.setdefault(number, []).append(run.bytes)
    if len(peaks) < LEAST_VALUES or max(peaks) < LEAST_SPAN * min(peaks):
        return None
    points = [(number, sum(sizes) / len(sizes)) for number, sizes in peaks.items()]
    base, step = _least_squares(points)
    errors = sorted(abs((base + step * number) / peak - 1) for number, peak in points)
    error = (errors[len(errors) // 2] + errors[(len(errors) - 1) // 2]) / 2
    if step <= 0 or error >= MAX_ERROR:
        return None
    return Line(
        argument=name,
        base_bytes=round(base),
        step_bytes=step,
        value=value,
        low=min(peaks),
        high=max(peaks),
        values=len(peaks),
        error=round(error, 4),
    )


def _least_squares(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return base and step of the line through *points* with the least squares of relative errors, the base from 0 up.

    A base below zero would foretell less than nothing for small values.
    """
    shares = [1 / peak**2 for _, peak in points]
    total = sum(shares)
    middle = sum(share * number for share, (number, _) in zip(shares, points, strict=True)) / total
    height = sum(share * peak for share, (_, peak) in zip(shares, points, strict=True)) / total
    width = sum(share * (number - middle) ** 2 for share, (number, _) in zip(shares, points, strict=True))
    rise = sum(share * (number - middle) * peak for share, (number, peak) in zip(shares, points, strict=True))
    base = height - rise / width * middle
    if base >= 0:
        return base, rise / width
    squares = sum(share * number**2 for share, (number, _) in zip(shares, points, strict=True))
    return 0.0, sum(share * number * peak for share, (number, peak) in zip(shares, points, strict=True)) / squares


def _moved(line: Line, run: PastRun, value: float) -> PastRun | None:
    """Return *run* as it would be at the value of the job. None if it says nothing about that.

    A lower bound and a lack of memory also hold for larger values. A lack of memory that the line foretells says no
    more than the line.
    """
    there = line.at(value)
    if run.proof is Proof.PEAK:
        return replace(run, bytes=min(MAX_BYTES, round(run.bytes * line.at(line.value) / there))) if there else None
    is_bound = run.proof in {Proof.AT_LEAST, Proof.PARTIAL}
    is_new = is_bound or (run.proof is Proof.DIED and run.bytes > there)
    return run if is_new and value <= line.value else None
