"""Rules of the literature for the memory of a job that has run before, in simple form, to set beside our own.

The papers know the size of the input of a job. Here its first numeric argument stands for that. Both rules retry with
twice as much, as ours do.

- Sizey (Bader et al. 2024, arXiv 2407.16353): several models, of which the most accurate so far foretells the peak, and
  an offset that would have wasted least. Here the models are a line and the mean of the three nearest runs; the paper
  also has a forest and a neural network, and may weigh the models.
- k-Segments (Bader et al. 2023, arXiv 2311.08185): a line for each part of a run, and the largest error so far above
  it. A job here asks for one number, so there is one part.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from gpuqueue.learning.line import number_of
from gpuqueue.learning.past_run import PastRun, Proof
from gpuqueue.learning.replay import Rule
from gpuqueue.learning.rule import LEAST_BYTES, tried

#: The number of newest runs that count, and of nearest ones.
LAST, NEAREST = 20, 3

#: Numbers and peaks of runs.
_Points: TypeAlias = Sequence[tuple[float, int]]
#: Foretells the peak of a number.
_Model: TypeAlias = Callable[[_Points, float], float]


def sizey(run: PastRun, earlier: Sequence[PastRun]) -> float:
    """Return the number of Sizey for *run* after the *earlier* runs, newest first."""
    points, number = _points(earlier), _number(run)
    model = max((_by_line, _by_nearest), key=lambda model: _accuracy(points, _left_out(model, points)))
    guesses = _left_out(model, points)
    errors = [peak - guess for (_, peak), guess in zip(points, guesses, strict=True)]
    under = [error for error in errors if error > 0] or [0.0]
    offsets = (
        statistics.pstdev(errors),
        statistics.pstdev(under),
        statistics.median(map(abs, errors)),
        statistics.median(under),
    )
    return model(points, number) + min(offsets, key=lambda offset: _taken(points, guesses, offset))


def k_segments(run: PastRun, earlier: Sequence[PastRun]) -> float:
    """Return the number of k-Segments with one segment for *run* after the *earlier* runs, newest first."""
    points, number = _points(earlier), _number(run)
    return _by_line(points, number) + max(0.0, *(peak - _by_line(points, at) for at, peak in points))


PEERS: Mapping[str, Rule] = {"Sizey, simple": sizey, "k-Segments, simple": k_segments}


def _points(earlier: Sequence[PastRun]) -> _Points:
    return [(_number(run), run.bytes) for run in earlier if run.proof is Proof.PEAK][:LAST]


def _number(run: PastRun) -> float:
    return next((number for word in run.words if (number := number_of(word)) is not None), 0.0)


def _by_line(points: _Points, number: float) -> float:
    numbers, peaks = [at for at, _ in points], [peak for _, peak in points]
    if len({*numbers}) < 2:  # noqa: PLR2004 - no line goes through one
        return statistics.fmean(peaks)
    slope, base = statistics.linear_regression(numbers, peaks)
    return base + slope * number


def _by_nearest(points: _Points, number: float) -> float:
    return statistics.fmean(peak for _, peak in sorted(points, key=lambda point: abs(point[0] - number))[:NEAREST])


def _left_out(model: _Model, points: _Points) -> Sequence[float]:
    """Return what *model* foretells for each of *points* from the others."""
    if len(points) == 1:
        return [points[0][1]]
    return [model([*points[:place], *points[place + 1 :]], number) for place, (number, _) in enumerate(points)]


def _accuracy(points: _Points, guesses: Sequence[float]) -> float:
    return sum(1 - min(1, abs(guess / peak - 1)) for (_, peak), guess in zip(points, guesses, strict=True))


def _taken(points: _Points, guesses: Sequence[float], offset: float) -> float:
    return sum(
        tried(peak, max(LEAST_BYTES, int(guess + offset)), None)[1]
        for (_, peak), guess in zip(points, guesses, strict=True)
    )
