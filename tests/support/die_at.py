"""A real worker that is killed or fails at one given step.

python die_at.py kill workers.claimer:Claimer._take run --device 0 --plain     SIGKILL there
python die_at.py kill@3 workers.run.directory:remove run --device 0 --plain      SIGKILL there, the third time
python die_at.py fail workers.steps.judge:Judge.judge run --device 0 --plain     an OSError, the first time only
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import Any


def kill(_step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that ends this process with SIGKILL in the middle of a step."""

    def fate(*_args: Any, **_kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return fate


def fail(step: Callable[..., Any]) -> Callable[..., Any]:
    """Raise an OSError the first time, as on a disk that is full for a moment, and write a line to stderr.

    Not every caller reports the error.
    """
    failed = []

    def fate(*args: Any, **kwargs: Any) -> Any:
        if not failed:
            failed.append(True)
            sys.stderr.write("the moment of trouble\n")
            raise OSError(28, "No space left on device")
        return step(*args, **kwargs)

    return fate


def later(step: Callable[..., Any], time: int, fate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does *step* until call number *time*, and *fate* from then on."""
    calls = count(1)

    def counted(*args: Any, **kwargs: Any) -> Any:
        return (step if next(calls) < time else fate)(*args, **kwargs)

    return counted


if __name__ == "__main__":
    how, place, *sys.argv[1:] = sys.argv[1:]
    how, _, time = how.partition("@")
    module, _, path = place.partition(":")
    owner_name, _, name = path.rpartition(".")
    owner = getattr(import_module(module), owner_name) if owner_name else import_module(module)
    step = getattr(owner, name)
    setattr(owner, name, later(step, int(time or 1), {"kill": kill, "fail": fail}[how](step)))
    from workers.cli import main

    main()
