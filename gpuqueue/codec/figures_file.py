"""The file in the directory of a run that has its figures so far. It has the rights of the log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.errors import Unreadable
from gpuqueue.model.run_figures import RunFigures
from gpuqueue.system.safe_open import read_small

#: The name of the file, and its largest size in bytes.
NAME, MAX_BYTES = "figures", 1024 * 1024


def written(figures: RunFigures) -> str:
    """Return the content of the file. Of many metrics only the last, least and largest values are in it."""
    text = json.dumps(to_stored(figures))
    if len(text) > MAX_BYTES and figures.values is not None:
        metrics = tuple(replace(each, curve=()) for each in figures.values.metrics)
        text = json.dumps(to_stored(replace(figures, values=replace(figures.values, metrics=metrics))))
    return text if len(text) <= MAX_BYTES else json.dumps(to_stored(replace(figures, values=None)))


def read(directory: Path) -> RunFigures | None:
    """Return the figures in the run directory *directory*, or None if there are none."""
    try:
        return parsed(read_small(directory / NAME, MAX_BYTES))
    except (OSError, Unreadable):  # none yet, or the job has put something else there
        return None


def parsed(content: bytes | str) -> RunFigures | None:
    """Return the figures in *content*, or None if it has none."""
    try:
        found: RunFigures = from_plain(RunFigures, json.loads(content))
    except (ValueError, RecursionError, Unreadable):
        return None
    return found
