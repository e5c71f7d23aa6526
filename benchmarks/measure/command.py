"""Measures how long a user waits for a command, compared with the import of Python and click."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.measure.figure import Figure, Floor
from benchmarks.measure.rounds import alternate_timed, medians

#: The floor of every command, as a user would type it, and its words.
CLICK = 'python -c "import click"'
IMPORT_CLICK = (sys.executable, "-c", "import click")


def beside_click(name: str, words: Sequence[str], run: Callable[[Sequence[str]], object], *, rounds: int = 5) -> Figure:
    """Return the time of the whole process of *words*; *run* runs one to its end."""
    acts = {"ours": partial(run, words), "floor": partial(run, IMPORT_CLICK)}
    found = medians(alternate_timed(rounds, acts))
    floor = Floor(name=CLICK, value=found["floor"] * 1e3)
    return Figure(name=name, value=found["ours"] * 1e3, unit="ms", floor=floor, rounds=rounds)
