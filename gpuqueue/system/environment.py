"""Which variables of the submitter's environment travel with a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuqueue.errors import Unreadable
from gpuqueue.lazy.imports import later
from gpuqueue.text.json_fields import loaded

if TYPE_CHECKING:
    import shutil
else:
    shutil = later("shutil")


#: Variables that do not travel: the queue's own addresses hold passwords, the rest is the worker's to set or
#: belongs to the submitter's shell and would be wrong anywhere else. docs/reference/submit.md lists them.
LEFT_OUT = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "_", "SHLVL", "OLDPWD", "PWD"}
)


OURS = "GPUQUEUE_"


#: In a job: the variables of the submitter that the worker changed or added, as JSON: name to [before, after].
CHANGED = "GPUQUEUE_CHANGED"


#: Of our own variables only these travel: they hold no secret, and a job that submits jobs needs them.
OURS_THAT_TRAVEL = frozenset({"GPUQUEUE_STATE_DIR", "GPUQUEUE_CONFIG"})


def travelling(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of *environ* that travels with a job.

    In a job that submits another one, what the worker set for the first is as it was before: the second may ask
    for more memory, and its own worker sees to that.
    """
    return {
        name: value
        for name, value in _unchanged(environ).items()
        # A name that is empty (an entry "=x" of the environment) cannot be given to any process by name.
        if name and name not in LEFT_OUT and (not name.startswith(OURS) or name in OURS_THAT_TRAVEL)
    }


def _unchanged(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without the worker's changes, as far as they still stand."""
    before = dict(environ)
    for name, was, now in _changes(environ.get(CHANGED)):
        if before.get(name) == now:
            del before[name]
            if was is not None:
                before[name] = was
    return before


def _changes(text: str | None) -> list[tuple[str, str | None, str]]:
    """Return what the worker changed: name, before, after. Whatever else the variable holds was not said by it."""
    try:
        plain = loaded(text, CHANGED)
        pairs = {name: plain.each(name) for name in plain}
    except Unreadable:
        return []
    return [
        (name, *pair)
        for name, pair in pairs.items()
        if len(pair) == 2 and isinstance(pair[1], str) and (pair[0] is None or isinstance(pair[0], str))  # noqa: PLR2004
    ]
