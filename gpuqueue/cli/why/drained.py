"""Of ``why``: which drained devices somebody must resume before a job can start. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpuqueue.cli.why.table import label
from gpuqueue.client.why import Why
from gpuqueue.queue.explanation import Obstacle, Verdict

#: What takes no job, so that a job on several devices cannot count on it beside those that are resumed.
_SHUT = {Obstacle.DRAINED, Obstacle.SILENT}


def resume_words(found: Why, possible: Sequence[Verdict]) -> str:
    """Return who must resume what of the *possible* devices, and how; empty where none of them is drained.

    A job on several devices gets all of them on one host: there as many are named as it lacks.
    """
    ways = _ways(found, possible)
    if not ways:
        return ""
    fewest = min(lacking for lacking, _ in ways)
    choices = [drained for lacking, drained in ways if lacking == fewest]
    if fewest == 1:
        names = " or ".join(each for drained in choices for each in drained)
    else:
        names = " or ".join(_so_many(fewest, drained) for drained in choices)
    return f"not before somebody resumes {names}: gpuqueue resume {' '.join(choices[0][:fewest])}"


def _ways(found: Why, possible: Sequence[Verdict]) -> list[tuple[int, list[str]]]:
    """Return for each host and kind of device that could do how many of its drained devices it takes, and these."""
    ways = []
    for group in found.together(possible):
        drained = [label(found, each.device) for each in group if each.obstacle is Obstacle.DRAINED]
        lacking = max(1, found.job.spec.gpus - sum(each.obstacle not in _SHUT for each in group))
        if lacking <= len(drained):
            ways.append((lacking, drained))
    return ways


def _so_many(lacking: int, drained: Sequence[str]) -> str:
    """Return *lacking* of *drained*, in words."""
    if lacking == len(drained):
        return " and ".join(drained)
    return f"{lacking} of {', '.join(drained)}"
