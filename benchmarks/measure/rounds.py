"""Alternating rounds and medians, because a machine is noisy."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

T = TypeVar("T")
N = TypeVar("N", int, float)


def timed(act: Callable[[], object]) -> float:
    """Return the duration of *act*, in seconds."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def alternate(rounds: int, acts: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Return the results of each act, one for each round. Each round runs all of them once, in turn."""
    found: dict[str, list[T]] = {name: [] for name in acts}
    for _ in range(rounds):
        for name, act in acts.items():
            found[name].append(act())
    return found


def alternate_timed(rounds: int, acts: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Return the durations of each act, one for each round, in seconds."""
    return alternate(rounds, {name: partial(timed, act) for name, act in acts.items()})


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each."""
    return {name: statistics.median(each) for name, each in found.items()}


def quantile(values: Sequence[N], share: float) -> N:
    """Return the least value that the *share* of *values* does not exceed: one of a hundred is above the 0.99."""
    return sorted(values)[max(1, math.ceil(round(len(values) * share, 6))) - 1]


def until(condition: Callable[[], T], what: str, *, timeout_s: float = 120.0, every_s: float = 0.001) -> T:
    """Return the first truthy value of *condition*.

    Raises:
        TimeoutError: there was none in time.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {timeout_s:g} s")
        time.sleep(every_s)
    return value
