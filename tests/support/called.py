"""Functions that tests call in jobs. A job can import them, as those of a user's own module."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import gpuqueue


def square(number: int) -> int:
    """Return the square."""
    return number * number


def divide(above: float, below: float) -> float:
    """Return the quotient."""
    return above / below


def end(code: int) -> None:
    """End the process at once, as a crash does: nothing is returned and nothing is raised."""
    sys.stdout.write("the last words\n")
    sys.stdout.flush()
    os._exit(code)


def place() -> str:
    """Return the working directory."""
    return str(Path.cwd())


def wait_for(path: str) -> str:
    """Return the path once a file is there."""
    while not Path(path).exists():
        time.sleep(0.05)
    return path


class Unpicklable(Exception):
    """An exception that holds what cannot be pickled, and whose class takes other arguments than it stores."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.held = (each for each in ())


def unpicklable(*, raises: bool) -> object:
    """Return what cannot be pickled, or raise it."""
    if raises:
        raise Unpicklable(1, 2)
    return (each for each in ())


@gpuqueue.task(mem="1M", name="tripled")
def triple(number: int) -> int:
    """Return three times the number."""
    return 3 * number
