"""Part of ``why``: the drained devices that must be resumed before a job can start. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpuqueue.cli.why.table import label
from gpuqueue.client.why import Why
from gpuqueue.queue.explanation import Obstacle, Verdict

#: Obstacles of a device that takes no job. A job on several devices cannot use it together with resumed ones.
_SHUT = {Obstacle.DRAINED, Obstacle.SILENT}


def resume_words(found: Why, possible: Sequence[Verdict]) -> str:
    """Return which of the *possible* devices must be resumed, and the command; empty if resuming does not help.

    All devices of a job are on one host. The text names as many of a host's drained devices as the job lacks there.
    """
    ways = _ways(found, possible)
    if not ways:
        return ""
    fewest = min(lacking for lacking, _ in ways)
    choices = [drained for lacking, drained in ways if lacking == fewest]
    if fewest == 1:
        names = " or ".join(each for drained in choices for each in drained)
    else:
        names = " or ".join(_some_of(fewest, drained) for drained in choices)
    return f"not before somebody resumes {names}: gpuqueue resume {' '.join(choices[0][:fewest])}"


def _ways(found: Why, possible: Sequence[Verdict]) -> list[tuple[int, list[str]]]:
    """Return for each host and device kind how many devices must be resumed, and the drained ones to choose from.

    Hosts with too few drained devices are omitted.
    """
    ways = []
    for group in found.together(possible):
        drained = [label(found, each.device) for each in group if each.obstacle is Obstacle.DRAINED]
        lacking = max(1, found.job.spec.gpus - sum(each.obstacle not in _SHUT for each in group))
        if lacking <= len(drained):
            ways.append((lacking, drained))
    return ways


def _some_of(lacking: int, drained: Sequence[str]) -> str:
    """Return *lacking* of the devices *drained*, in words."""
    if lacking == len(drained):
        return " and ".join(drained)
    return f"{lacking} of {', '.join(drained)}"
