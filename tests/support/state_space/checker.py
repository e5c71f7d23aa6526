"""Explores every state that a model can reach, breadth first, so that a trace is the shortest one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Explored(Generic[S]):
    """The result: the number of states and steps and, if a promise broke, its text, the trace and the last state."""

    states: int
    steps: int
    depth: int
    broken: str | None = None
    trace: tuple[str, ...] = ()
    last: S | None = None


def explore(
    first: S,
    steps: Callable[[S], Iterable[tuple[str, S]]],
    broken: Callable[[S], str | None],
    *,
    most: int = 2_000_000,
) -> Explored[S]:
    """Take every step from every state, and stop at the first state with a broken promise.

    *steps* yields the steps of a state with their labels. *broken* returns the broken promise of a state, or None.

    Raises:
        RuntimeError: There are more than *most* states, so nothing is proved.

    """
    gc.disable()  # the search makes no garbage, and collection takes most of the time
    try:
        return _explore(first, steps, broken, most)
    finally:
        gc.enable()


def _explore(
    first: S, steps: Callable[[S], Iterable[tuple[str, S]]], broken: Callable[[S], str | None], most: int
) -> Explored[S]:
    came: dict[S, tuple[S, str] | None] = {first: None}
    front, taken, depth = [first], 0, 0
    while front:
        following: list[S] = []
        for state in front:
            words = broken(state)
            if words is not None:
                trace = _way(came, state)
                return Explored(states=len(came), steps=taken, depth=depth, broken=words, trace=trace, last=state)
            for label, after in steps(state):
                taken += 1
                if after not in came:
                    came[after] = (state, label)
                    following.append(after)
        if len(came) > most:
            raise RuntimeError(f"more than {most} states: make the model smaller")
        front = following
        depth += bool(front)
    return Explored(states=len(came), steps=taken, depth=depth)


def _way(came: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    labels: list[str] = []
    step = came[state]
    while step is not None:
        state, label = step
        labels.append(label)
        step = came[state]
    return tuple(reversed(labels))
