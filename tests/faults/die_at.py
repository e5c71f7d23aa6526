"""A real worker that meets its fate at one given step.

python die_at.py kill workers.claimer:Claimer._take run --device 0 --plain     SIGKILL there
python die_at.py fail workers.runner:Runner._settle run --device 0 --plain     an OSError, the first time only
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def kill(_step: Callable[..., Any]) -> Callable[..., Any]:
    """End this process as the kernel would, in the middle of what it does."""

    def fate(*_args: Any, **_kwargs: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return fate


def fail(step: Callable[..., Any]) -> Callable[..., Any]:
    """Fail the first time, as on a disk that is full for a moment."""
    failed = []

    def fate(*args: Any, **kwargs: Any) -> Any:
        if not failed:
            failed.append(True)
            raise OSError(28, "No space left on device")
        return step(*args, **kwargs)

    return fate


if __name__ == "__main__":
    how, place, *sys.argv[1:] = sys.argv[1:]
    module, _, path = place.partition(":")
    owner_name, _, name = path.rpartition(".")
    owner = getattr(import_module(module), owner_name)
    setattr(owner, name, {"kill": kill, "fail": fail}[how](getattr(owner, name)))
    from workers.cli import main

    main()
