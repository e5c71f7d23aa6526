"""What was selected in a directory: the result of ``select_in_git`` and of ``select_in_directory`` of ``take.py``."""

from __future__ import annotations

import os

from gpuqueue.lazy.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A default pattern that left paths out: how many, and the first of them. A directory counts as one path."""

    pattern: str
    paths: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The selected paths with their status on disk, not sorted.

    ``excluded`` is what the default patterns left out, and ``notes`` has one line for each thing that the user should
    know.
    """

    found: tuple[tuple[str, os.stat_result], ...]
    excluded: tuple[Excluded, ...] = ()
    notes: tuple[str, ...] = ()
