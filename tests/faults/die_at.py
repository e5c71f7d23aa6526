"""A real worker that is killed with SIGKILL at one given step.

python die_at.py workers.claimer:Claimer._take run --device 0 --plain
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any


def die(*_args: Any, **_kwargs: Any) -> None:
    """End this process as the kernel would, in the middle of what it does."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    place, *sys.argv[1:] = sys.argv[1:]
    module, _, path = place.partition(":")
    owner, _, name = path.rpartition(".")
    setattr(getattr(import_module(module), owner), name, die)
    from workers.cli import main

    main()
